"""The requests of one decode node: admission, streaming, publishing, release. Loop thread only."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemons.client.channel_pool import ChannelPool
from daemons.client.node_health import suspicion
from daemons.client.publisher import Publisher
from daemons.client.put_patience import PutPatience
from daemons.config.mc_decode import DecodeConfig
from daemons.core.errors import Exhausted, McError, Rejected, Unavailable
from daemons.core.ids import NodeId, RequestId
from daemons.engine.instance import Instance
from daemons.mc_decode.checks import check_request
from daemons.mc_decode.endings import answered, failed, too_late
from daemons.mc_decode.filling import Events, Filling
from daemons.mc_decode.metrics import DecodeMetrics
from daemons.mc_decode.pace import Pace
from daemons.mc_decode.publishing import blocks_to_offer
from daemons.mc_decode.request import Holder, Request, State, Stepped
from daemons.protocol.base import Message
from daemons.protocol.block import BlockLocation
from daemons.protocol.node import InstanceLoad
from daemons.protocol.request import (
    Cancel,
    FinishReason,
    Generate,
    Tokens,
)
from daemons.rpc import Call, Loop

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Effects:
    """What the requests ask of the process around them."""

    join: Callable[[Request], object]
    """All KV is there: make tokens. `stepped` comes back on the loop."""
    leave: Callable[[Request], object]
    """Make no more; `left` comes back on the loop when no step works on the slot."""
    tell_master: Callable[[Message], object]


class Requests:
    """Every request ends in exactly one reply and one release of its slot."""

    def __init__(
        self,
        loop: Loop,
        config: DecodeConfig,
        instance: Instance,
        effects: Effects,
        channels: ChannelPool,
    ) -> None:
        self.metrics = DecodeMetrics()
        self.is_draining = False
        self._loop = loop
        self._node = NodeId(config.node.id)
        self._config = config.decode
        self._instance = instance
        self._effects = effects
        self._publisher = Publisher(channels)
        events = Events(
            on_first_token=self._on_first_token,
            on_filled=self._on_filled,
            on_failed=self._fail,
            on_copied=self._on_copied,
            on_suspect=self._on_suspect,
        )
        self._filling = Filling(loop, config, instance, channels, events)
        self._requests: dict[RequestId, Request] = {}
        self._waiting: deque[Request] = deque()
        self._is_starting = False
        self._patience = PutPatience[Request](loop, self._config.put_hold_s, self._start_waiting)
        self._pace = Pace()

    @property
    def num_live(self) -> int:
        return len(self._requests)

    def admit(self, call: Call, message: Generate) -> None:
        """Queue it; raises Rejected, Exhausted or Unavailable when it cannot be served here."""
        self._check(message)
        request = Request(call, message, self._loop.clock())
        call.on_gone = lambda: self.cancel(
            Cancel(request_id=message.request_id, why="its gateway is gone")
        )
        left_s = max(0.0, call.deadline_s - self._loop.clock())
        request.deadline = self._loop.call_later(left_s, self._expire, request)
        self._requests[message.request_id] = request
        self._waiting.append(request)
        self._start_waiting()

    def cancel(self, message: Cancel) -> None:
        """Stop it wherever it is; what it holds goes as soon as no copy and no step works on it."""
        request = self._requests.get(message.request_id)
        if request is None or request.state == "ended":
            return
        request.given_up = None if message.is_complete else message.why or "it was cancelled"
        if request.reply is not None:
            self._finish(request, "cancelled")
        else:
            self._fail(request, Unavailable("the request was cancelled"))

    def stepped(self, steps: Sequence[Stepped], elapsed_s: float) -> None:
        """The engine made a token, or several, for each of these."""
        self.metrics.step.observe(elapsed_s)
        if steps:
            self._pace.observe(steps, elapsed_s)
            self.metrics.draft_tokens.labels("proposed").inc(sum(s.num_drafts for s in steps))
            self.metrics.draft_tokens.labels("accepted").inc(sum(s.num_right for s in steps))
        for step in steps:
            if step.request.state == "decoding":
                step.request.num_steps += 1
                step.request.num_drafts += step.num_drafts
                step.request.num_right += step.num_right
                self._take_tokens(step.request, step.tokens, step.finish)

    def left(self, request: Request) -> None:
        """No step works on the slot any more."""
        self._let_go(request, "engine")

    def failed(self, request: Request, error: McError) -> None:
        """The engine broke on it and dropped it."""
        self._fail(request, error)

    def load_view(self) -> InstanceLoad:
        fixed_s, sequence_s, context_token_s = self._pace.coefficients()
        return InstanceLoad(
            num_queued=len(self._waiting),
            num_running=len(self._requests) - len(self._waiting),
            queued_tokens=sum(request.num_prompt_tokens for request in self._waiting),
            free_tokens=self._instance.arena.free_tokens,
            decode_step_s=self._pace.step_s,
            decode_fixed_s=fixed_s,
            decode_sequence_s=sequence_s,
            decode_context_token_s=context_token_s,
            is_draining=self.is_draining,
        )

    def refresh_metrics(self) -> None:
        self.metrics.waiting.set(len(self._waiting))
        self.metrics.running.set(len(self._requests) - len(self._waiting))
        self.metrics.free_tokens.set(self._instance.arena.free_tokens)

    def close(self) -> None:
        self._filling.close()

    def _check(self, message: Generate) -> None:
        if self.is_draining:
            raise Unavailable(f"decode node {self._node} is draining; use another one")
        if message.request_id in self._requests:
            raise Rejected(f"request {message.request_id} is already here")
        check_request(message, self._instance.model, self._node)
        if len(self._waiting) >= self._config.max_queued:
            raise Exhausted(
                f"{self._config.max_queued} requests are waiting on decode node {self._node}",
                retry_after_ms=1000,
            )

    def _start_waiting(self) -> None:
        """First come, first served, so that a long request is not starved by short ones."""
        if self._is_starting:
            return  # called by one that ended while it was started: the loop below goes on
        self._is_starting = True
        try:
            while self._waiting and self._give_slot(self._waiting[0]):
                request = self._waiting.popleft()
                request.state = "filling"
                self._filling.start(request)
        finally:
            self._is_starting = False

    def _give_slot(self, request: Request) -> bool:
        wanted = request.num_prompt_tokens + request.message.sampling.max_tokens
        while True:
            try:
                request.slot = self._instance.arena.allocate(wanted)
            except Exhausted:
                lingering = self._patience.take_due()
                if lingering is None:
                    return False
                log.info("slot given up, its put hangs request=%s", lingering.message.request_id)
                self.metrics.puts_given_up.inc()
                self._release(lingering)
            else:
                return True

    def _on_first_token(self, request: Request) -> None:
        reply, sampling = request.reply, request.message.sampling
        assert reply is not None
        self.metrics.first_token.observe(request.first_token_s - request.arrived_s)
        finish: FinishReason | None = None
        if reply.first_token in self._instance.model.eos_token_ids and not sampling.ignore_eos:
            finish = "stop"
        elif sampling.max_tokens == 1:
            finish = "length"
        self._take_tokens(request, [reply.first_token], finish)

    def _on_filled(self, request: Request) -> None:
        request.state = "decoding"
        request.holders.add("engine")
        self._effects.join(request)

    def _on_copied(self, request: Request, pulled_bytes: int, loaded_bytes: int) -> None:
        self.metrics.pulled_bytes.inc(pulled_bytes)
        self.metrics.loaded_bytes.inc(loaded_bytes)
        self._release_if_idle(request)

    def _on_suspect(self, location: BlockLocation, why: str) -> None:
        """On the loader's thread."""
        self._loop.call_soon_threadsafe(self._effects.tell_master, suspicion(location, why))

    def _take_tokens(
        self, request: Request, tokens: Sequence[int], finish: FinishReason | None
    ) -> None:
        request.tokens.extend(tokens)
        self.metrics.tokens.inc(len(tokens))
        shown = tokens[:-1] if finish == "stop" else tokens
        if shown:
            request.call.part(Tokens(tokens=list(shown)))
        if finish is not None:
            self._finish(request, finish)

    def _finish(self, request: Request, finish: FinishReason) -> None:
        if request.state == "ended":
            return
        state = _end(request)
        if state == "decoding":
            self._effects.leave(request)
            if finish != "cancelled":
                self._publish(request)
        elif finish == "cancelled":
            self._filling.stop(request)
        else:
            self._filling.release_prefill(request)
        timing = request.timing(self._loop.clock())
        reply, done = answered(request, finish, timing, self._node)
        request.call.reply(reply)
        self.metrics.requests.labels(finish).inc()
        self._effects.tell_master(done)
        self._release_if_idle(request)

    def _fail(self, request: Request, error: McError) -> None:
        if request.state == "ended":
            return
        state = _end(request)
        if state == "decoding":
            self._effects.leave(request)
        elif state == "filling":
            self._filling.stop(request)
        elif request in self._waiting:
            self._waiting.remove(request)
        request.call.fail(error)
        self.metrics.requests.labels("cancelled" if request.given_up else "failed").inc()
        self._effects.tell_master(failed(request, error, self._node))
        self._release_if_idle(request)

    def _expire(self, request: Request) -> None:
        if request.state != "ended":
            took_s = self._loop.clock() - request.arrived_s
            num_before = self._waiting.index(request) if request in self._waiting else 0
            self._fail(request, too_late(request, took_s, num_before, self._node))

    def _publish(self, request: Request) -> None:
        blocks = blocks_to_offer(self._instance, request) if self._config.publish else []
        target = request.message.plan.put_target
        if not blocks or target is None:
            return
        request.num_published = len(blocks)
        request.holders.add("put")

        def on_done(num_stored: int) -> None:
            self.metrics.published.inc(num_stored)
            self._let_go(request, "put")

        self._publisher.offer(target, blocks, on_done)

    def _let_go(self, request: Request, holder: Holder) -> None:
        request.holders.discard(holder)
        self._release_if_idle(request)

    def _release_if_idle(self, request: Request) -> None:
        if request.state != "ended" or request.num_pulls:
            return
        if not request.holders:
            self._release(request)
        elif request.holders == {"put"} and request.slot is not None:
            self._patience.begin(request)
        else:
            return
        self._start_waiting()

    def _release(self, request: Request) -> None:
        self._patience.end(request)
        if self._requests.get(request.message.request_id) is request:
            del self._requests[request.message.request_id]
        if request.slot is not None:
            slot, request.slot = request.slot, None
            self._instance.release(slot)


def _end(request: Request) -> State:
    """Nothing more happens to it; returns what it was doing."""
    state, request.state = request.state, "ended"
    if request.deadline is not None:
        request.deadline.cancel()
    return state
