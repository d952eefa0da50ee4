"""The prompts of one prefill node: admission, slots, hand-off, publishing, release. Loop thread only."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from daemons.client.prefix_load import PrefixLoad, PrefixLoader
from daemons.client.publisher import Publisher
from daemons.client.put_patience import PutPatience
from daemons.client.spares import behind
from daemons.config.mc_prefill import PrefillSection
from daemons.core.errors import Exhausted, McError, Rejected, Unavailable
from daemons.core.ids import RequestId, short
from daemons.engine.instance import Instance
from daemons.mc_prefill.checks import check_prompt
from daemons.mc_prefill.device_tier import DeviceTier
from daemons.mc_prefill.job import Computed, Holder, Job
from daemons.mc_prefill.metrics import PrefillMetrics
from daemons.mc_prefill.offering import Offering
from daemons.mc_prefill.pace import Pace
from daemons.mc_prefill.reuse import target_behind
from daemons.mc_prefill.siblings import Match, Siblings
from daemons.protocol.block import BlockLocation
from daemons.protocol.node import InstanceLoad
from daemons.protocol.request import LayersReady, Prefill, PrefillReply, PrefillStarted
from daemons.rpc import Call, Loop

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Effects:
    """What the jobs ask of the process around them."""

    compute: Callable[[Job], object]
    """Hand the job to the model thread; `computed` comes back on the loop."""
    withdraw: Callable[[Job], bool]
    """Take it back if it was not begun."""
    report_bad: Callable[[BlockLocation, str], object]
    match: Match


@dataclass(frozen=True, slots=True)
class Ways:
    """Between slots and the pool: out and in."""

    publisher: Publisher
    loader: PrefixLoader
    tier: DeviceTier


class Jobs:
    """Every job ends in exactly one reply and one release of its slot."""

    def __init__(
        self,
        loop: Loop,
        config: PrefillSection,
        instance: Instance,
        effects: Effects,
        ways: Ways,
    ) -> None:
        self.metrics = PrefillMetrics()
        self.is_draining = False
        self._loop = loop
        self._config = config
        self._instance = instance
        self._effects = effects
        self._loader = ways.loader
        self._tier = ways.tier
        self._jobs: dict[RequestId, Job] = {}
        self._waiting: deque[Job] = deque()
        """Admitted, without a slot yet."""
        self._is_starting = False
        self._patience = PutPatience[Job](loop, config.put_hold_s, self._start_waiting)
        self._siblings = Siblings(
            loop, effects.match, self._start_waiting, self.metrics.sibling_blocks.inc
        )
        self._offering = Offering(
            ways.publisher if config.publish else None,
            instance,
            effects.match,
            self._tier.is_cleared,
            self.metrics.published.inc,
            self._let_go,
        )
        self._running: dict[RequestId, Job] = {}
        """With a slot, until computed."""
        self._pace = Pace()

    @property
    def num_live(self) -> int:
        return len(self._jobs)

    def admit(self, call: Call, request: Prefill) -> None:
        """Queue it; raises Rejected, Exhausted or Unavailable when it cannot be served here."""
        self._check(request)
        job = Job(call, request, self._loop.clock())
        call.on_gone = lambda: self.cancel(request.request_id)
        left_s = max(0.0, call.deadline_s - self._loop.clock())
        job.timer = self._loop.call_later(left_s, self._expire, job)
        self._jobs[request.request_id] = job
        self._waiting.append(job)
        self._start_waiting()

    def cancel(self, request_id: RequestId) -> None:
        """Free all it holds: at once where nobody works on it, else when the model or the load notices."""
        job = self._jobs.get(request_id)
        if job is None:
            return
        self._end(job, Unavailable("the request was cancelled"))

    def pulled(self, request_id: RequestId) -> None:
        job = self._jobs.get(request_id)
        if job is not None:
            self._let_go(job, "decode")

    def load_view(self) -> InstanceLoad:
        fixed_s, token_s, token_context_s = self._pace.coefficients()
        return InstanceLoad(
            num_queued=len(self._waiting),
            num_running=len(self._running),
            queued_tokens=sum(
                job.num_to_compute for job in (*self._waiting, *self._running.values())
            ),
            free_tokens=self._tier.free_tokens,
            prefill_fixed_s=fixed_s,
            prefill_token_s=token_s,
            prefill_token_context_s=token_context_s,
            load_token_s=self._pace.load_token_s,
            is_draining=self.is_draining,
        )

    def layers_ready(self, job: Job, ready: LayersReady) -> None:
        job.call.part(ready)

    def chunk_done(self, job: Job, start: int, end: int) -> None:
        """All layers of tokens [start, end) exist: offer the full blocks among them to the pool."""
        self._offering.chunk_done(job, start, end)

    def computed(self, job: Job, outcome: Computed | McError) -> None:
        """The model is done with the slot, one way or the other."""
        self._running.pop(job.request.request_id, None)
        job.computed_s = self._loop.clock()
        if isinstance(outcome, Computed) and not job.is_ended:
            self._tier.computed(job)
            self._offering.computed(job)
            self._reply(job, outcome)
        elif isinstance(outcome, McError):
            self._end(job, outcome)
        self._let_go(job, "model")
        self._start_waiting()

    def _loaded(self, job: Job, load: PrefixLoad) -> None:
        """Nothing writes into the slot on its behalf any more."""
        for location, why in load.bad:
            log.warning("reused block failed hash=%s why=%s", short(location.hash), why)
            self.metrics.bad_blocks.inc()
            self._effects.report_bad(location, why)
        self.metrics.loaded_bytes.inc(load.loaded_bytes)
        self._pace.loaded(load)
        self._let_go(job, "load")

    def refresh_metrics(self) -> None:
        self.metrics.queued.set(len(self._waiting) + max(0, len(self._running) - 1))
        kept = self._tier.slots
        self.metrics.free_tokens.set(self._tier.free_tokens)
        self.metrics.held.set(self._instance.arena.num_live - kept.num_idle)
        self.metrics.retained_tokens.set(kept.idle_tokens)
        self.metrics.device_blocks.set(kept.num_blocks)

    def _check(self, request: Prefill) -> None:
        if self.is_draining:
            raise Unavailable("this prefill node is draining; use another one")
        if request.request_id in self._jobs:
            raise Rejected(f"request {request.request_id} is already here")
        check_prompt(request, self._instance.model)
        if len(self._waiting) >= self._config.max_queued:
            raise Exhausted(
                f"{self._config.max_queued} prompts are waiting on this prefill node",
                retry_after_ms=1000,
            )

    def _start_waiting(self) -> None:
        """First come, first served: a long prompt that does not fit yet is not overtaken."""
        if self._is_starting:
            return  # called by one that ended while it was started: the loop below goes on
        self._is_starting = True
        try:
            while self._waiting and self._may_start(self._waiting[0]):
                self._start(self._waiting.popleft())
        finally:
            self._is_starting = False

    def _may_start(self, job: Job) -> bool:
        may_reuse = self._instance.model.is_reuse_safe and self._config.publish
        if may_reuse:
            others, num_held = self._jobs.values(), self._tier.num_known(job)
            if not self._siblings.is_ready(job, others, num_held):
                return False
        return self._give_slot(job)

    def _give_slot(self, job: Job) -> bool:
        while not self._tier.give_slot(job):
            lingering = self._patience.take_due()
            if lingering is None:
                return False
            log.info("slot given up, its puts hang request=%s", lingering.request.request_id)
            self.metrics.puts_given_up.inc()
            self._release(lingering)
        return True

    def _start(self, job: Job) -> None:
        assert job.slot is not None
        request = job.request
        self._running[request.request_id] = job
        job.holders |= {"model", "decode"}
        self._start_load(job)
        job.call.part(
            PrefillStarted(
                kv=self._instance.source(job.slot, 0, job.num_tokens),
                bytes_per_token_row=self._instance.geometry.bytes_per_token_layer_half,
                num_reused_tokens=job.num_tokens - job.num_to_compute,
            )
        )
        if not job.is_ended:
            self._effects.compute(job)
        else:
            self._running.pop(request.request_id, None)
            self._let_go(job, "model")

    def _start_load(self, job: Job) -> None:
        request, slot, reuse = job.request, job.slot, job.reused
        assert slot is not None, "a job starts with its slot"
        assert reuse is not None, "and with what is in it"
        if request.cache == "bypass" or not self._instance.model.is_reuse_safe:
            return
        if job.source is not None:
            job.holders.add("copy")
            self._tier.start_copy(job, partial(self._let_go, job, "copy"))
        held = reuse.num_held
        reuse.load = self._loader.start(
            request.matched.unpack()[held:],
            job.num_tokens - reuse.held_tokens,
            target_behind(self._instance, slot, held),
            partial(self._loaded, job),
            behind(request.spares, held),
        )
        if reuse.load is not None:
            job.holders.add("load")

    def _reply(self, job: Job, computed: Computed) -> None:
        timing = computed.timing
        job.call.reply(
            PrefillReply(
                first_token=computed.first_token,
                num_reused_tokens=job.num_reused_tokens,
                timing=timing,
                num_published_blocks=job.num_published_blocks,
            )
        )
        num_computed = job.num_tokens - job.num_reused_tokens
        self._pace.computed(num_computed, job.num_reused_tokens, timing.compute_s)
        self.metrics.requests.labels("ok").inc()
        self.metrics.tokens.labels("computed").inc(num_computed)
        self.metrics.tokens.labels("reused").inc(job.num_reused_tokens)
        self.metrics.device_tokens.inc(job.num_held_tokens)
        self.metrics.compute.observe(timing.compute_s)
        hold_s = min(self._config.hold_s, job.request.hold_ms / 1000)
        if job.timer is not None:
            job.timer.cancel()
        job.timer = self._loop.call_later(
            hold_s, self._end, job, Unavailable("nobody pulled the KV in time")
        )

    def _expire(self, job: Job) -> None:
        where = "being computed" if job.slot is not None else "waiting for KV room"
        took_s = self._loop.clock() - job.arrived_s
        self._end(
            job,
            Unavailable(
                f"the prompt's time ended after {took_s:.1f} s here, {where} with "
                f"{len(self._jobs) - 1} others; send shorter prompts, or allow more time"
            ),
        )

    def _end(self, job: Job, error: McError) -> None:
        """Answer with `error` if nothing was answered yet, stop what runs, void what peers may read."""
        if job.is_ended:
            return
        job.is_ended = True
        job.cancelled.set()
        if job.timer is not None:
            job.timer.cancel()
        if not job.call.is_done:
            self.metrics.requests.labels("failed").inc()
        job.call.fail(error)
        if job.reused is not None:
            job.reused.cancel()
        if job.slot is None:
            if job in self._waiting:
                self._waiting.remove(job)
            self._jobs.pop(job.request.request_id, None)
            self._start_waiting()
            return
        self._instance.generations.advance(job.slot.index)
        if self._effects.withdraw(job):
            self._running.pop(job.request.request_id, None)
            self._let_go(job, "model")
        self._let_go(job, "decode")

    def _let_go(self, job: Job, holder: Holder) -> None:
        job.holders.discard(holder)
        if job.slot is None:
            return
        if not job.holders:
            self._release(job)
        elif job.is_only_put:
            if job.timer is not None:  # nobody has to pull it any more
                job.timer.cancel()
            self._patience.begin(job)
        elif job.has_puts:
            return
        self._start_waiting()

    def _release(self, job: Job) -> None:
        self._patience.end(job)
        if job.timer is not None:
            job.timer.cancel()
        job.is_ended = True
        self._tier.release(job)
        self._jobs.pop(job.request.request_id, None)
