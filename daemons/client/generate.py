"""One request over rpc: schedule at the master, generate at a decode node, again elsewhere when that fails.

A Generation lives in the loop's thread and reports by callbacks; the decisions are in retry.py. Running requests do
not need the master. Whatever ends one early sends Cancel, so that no node works for nobody.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from daemons.client.channel_pool import ChannelPool
from daemons.client.planning import Planner, Question
from daemons.client.retry import MAX_RETRIES, GiveUp, Progress, Retry, Stage
from daemons.core.errors import McError, ProtocolError, Unavailable
from daemons.core.ids import BlockHash, RequestId
from daemons.protocol.messages import Part, Reply
from daemons.protocol.request import (
    CacheUse,
    Cancel,
    Generate,
    GenerateReply,
    Plan,
    SamplingParams,
    Schedule,
    Tokens,
)
from daemons.rpc import Channel, Loop, Pending, Timer

STOP_REPLY_S: Final = 0.5
"""How long a stopped request waits for the decode node's account of it."""
_MAX_WHY: Final = 200


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to generate. `sampling.seed` is fixed by now: a second attempt must draw the same tokens."""

    request_id: RequestId
    model: str
    namespace: bytes
    tokens: list[int]
    hashes: list[BlockHash]
    sampling: SamplingParams
    cache: CacheUse = "use"
    drafts: bool = True
    tenant: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class GenerationEnd:
    """How it ended: with a reply, with an error, or with neither when a stopped request's node did not answer.

    `plan` is that of the last attempt that had one, and `request_id` the last attempt's.
    """

    request_id: RequestId
    plan: Plan | None
    reply: GenerateReply | None
    num_retries: int
    error: McError | None = None


@dataclass(frozen=True, slots=True)
class Listener:
    """Called in the loop's thread: any number of `on_tokens`, then exactly one `on_end`, unless cancelled."""

    on_tokens: Callable[[list[int]], object]
    on_end: Callable[[GenerationEnd], object]


@dataclass(frozen=True, slots=True)
class Cluster:
    """How to reach it: the loop, the channel to the master, and one to each decode node."""

    loop: Loop
    master: Channel
    planner: Planner
    decodes: ChannelPool
    max_retries: int = MAX_RETRIES


class Generation:
    """Start with `start()`; `stop()` ends it early with an account, `cancel()` without a word."""

    def __init__(
        self, cluster: Cluster, request: GenerationRequest, listener: Listener, deadline_s: float
    ) -> None:
        self.progress = Progress(request.sampling.max_tokens, cluster.max_retries)
        self._cluster = cluster
        self._request = request
        self._listener = listener
        self._ends_at_s = cluster.loop.clock() + deadline_s
        self._attempt_id = request.request_id
        self._plan: Plan | None = None
        self._is_at_decode = False
        """A decode node may be at work on the current attempt."""
        self._pending: Pending | Question | None = None
        self._timer: Timer | None = None
        self._is_stopping = False
        self._is_done = False

    def start(self) -> None:
        self._schedule()

    def stop(self) -> None:
        """The text met a stop string: the node is told, its account is awaited for a moment."""
        if self._is_done or self._is_stopping:
            return
        if self._plan is None:
            self._finish(error=Unavailable("stopped before it was generated"))
        elif not self._is_at_decode:
            self._finish()  # its node has failed meanwhile, but all that is needed was delivered
        else:
            self._is_stopping = True
            self._send_cancel(is_complete=True)
            self._timer = self._cluster.loop.call_later(STOP_REPLY_S, self._finish)

    def cancel(self) -> None:
        """The client is gone: no callback comes any more."""
        if not self._is_done:
            self._close()
            self._send_cancel("its client left")

    def _schedule(self) -> None:
        self.progress.start_attempt()
        self._pending, self._timer = None, None
        attempt = self.progress.num_attempts - 1
        base = self._request.request_id
        self._attempt_id = RequestId(f"{base}.{attempt}") if attempt else base
        message = Schedule(
            request_id=self._attempt_id,
            model=self._request.model,
            num_prompt_tokens=len(self._request.tokens),
            max_tokens=self._request.sampling.max_tokens,
            hashes=self._request.hashes,
            tenant=self._request.tenant,
            namespace=self._request.namespace,
            exclude=list(self.progress.exclude),
            priority=self._request.priority,
        )
        try:
            self._pending = self._cluster.planner.ask(
                message, left_s=self._left_s(), on_reply=self._on_plan
            )
        except McError as error:
            self._on_failure(error, "schedule")

    def _on_plan(self, reply: Reply | McError) -> None:
        if self._is_done:
            return
        if isinstance(reply, Plan):
            self._plan, self._is_at_decode = reply, True
            self._generate(reply)
        else:
            self._on_failure(_as_error(reply, "Schedule"), "schedule")

    def _generate(self, plan: Plan) -> None:
        request = self._request
        message = Generate(
            request_id=self._attempt_id,
            model=request.model,
            namespace=request.namespace,
            tokens=request.tokens,
            hashes=request.hashes,
            sampling=request.sampling,
            plan=plan,
            cache=request.cache,
            drafts=request.drafts,
            tenant=request.tenant,
        )
        try:
            self._pending = self._cluster.decodes.get(plan.decode.control).request(
                message, timeout_s=self._left_s(), on_reply=self._on_reply, on_part=self._on_part
            )
        except McError as error:
            self._on_failure(error, "generate")

    def _on_part(self, part: Part) -> None:
        if self._is_done or self._is_stopping or not isinstance(part, Tokens):
            return
        try:
            new = self.progress.accept(part.tokens)
        except ProtocolError as error:
            self._fail_for_good(error)
            return
        if new:
            self._listener.on_tokens(new)

    def _on_reply(self, reply: Reply | McError) -> None:
        if self._is_done:
            return
        if self._is_stopping:
            self._finish(reply if isinstance(reply, GenerateReply) else None)
        elif not isinstance(reply, GenerateReply):
            self._on_failure(_as_error(reply, "Generate"), "generate")
        elif reply.finish_reason == "cancelled":
            self._on_failure(
                Unavailable(f"decode node {reply.decode_node} cancelled the request"), "generate"
            )
        else:
            try:
                self.progress.check_complete()
            except ProtocolError as error:
                self._fail_for_good(error)
                return
            self._finish(reply)

    def _on_failure(self, error: McError, stage: Stage) -> None:
        if stage == "generate":
            # It may have been a glitch of the network only, and the node still at work.
            self._send_cancel(f"its gateway gave this try up: {error.message}")
        match self.progress.after_failure(
            error, stage=stage, plan=self._plan, left_s=self._left_s()
        ):
            case Retry(delay_s=delay_s):
                self._timer = self._cluster.loop.call_later(delay_s, self._schedule)
            case GiveUp(error=final):
                self._finish(error=final)

    def _fail_for_good(self, error: McError) -> None:
        self._send_cancel(f"its gateway gave it up: {error.message}")
        self._finish(error=error)

    def _finish(self, reply: GenerateReply | None = None, *, error: McError | None = None) -> None:
        if self._is_done:
            return
        self._close()
        num_retries = self.progress.num_attempts - 1
        self._listener.on_end(
            GenerationEnd(self._attempt_id, self._plan, reply, num_retries, error)
        )

    def _close(self) -> None:
        self._is_done = True
        for running in (self._pending, self._timer):
            if running is not None:
                running.cancel()

    def _send_cancel(self, why: str = "", *, is_complete: bool = False) -> None:
        if self._plan is None or not self._is_at_decode:
            return
        self._is_at_decode = False
        try:
            channel = self._cluster.decodes.get(self._plan.decode.control)
            channel.post(
                Cancel(request_id=self._attempt_id, is_complete=is_complete, why=why[:_MAX_WHY])
            )
        except McError:
            return  # a node that cannot be reached frees the request by its own deadline

    def _left_s(self) -> float:
        return max(0.001, self._ends_at_s - self._cluster.loop.clock())


def _as_error(reply: Reply | McError, op: str) -> McError:
    if isinstance(reply, McError):
        return reply
    return ProtocolError(f"{op} was answered with {type(reply).__name__}")
