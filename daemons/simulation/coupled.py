"""The baseline: instances that prefill and decode alike, each with a cache of its own or none, as plain vLLM does.

Three ways to share an instance: `stalling` (a waiting prompt goes before all decoding, vLLM 0.5's default),
`chunked` (every step carries a chunk of a prompt along), `serial` (one request at a time, the papers' weakest).
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from daemons.simulation.decode_batch import RunningBatch, RunningSequence, StepRun
from daemons.simulation.events import EventQueue
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.outcome import RequestOutcome
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest

MAX_BATCHED_TOKENS: Final = 32_768
"""Prompts that are computed together."""

Sharing = Literal["stalling", "chunked", "serial"]


@dataclass(frozen=True, slots=True)
class CoupledPlan:
    """`chunk_tokens`: of a prompt in each step, with `sharing` chunked."""

    num_instances: int
    sharing: Sharing = "stalling"
    has_prefix_cache: bool = False
    chunk_tokens: int = 512


@dataclass(slots=True, eq=False)
class _Prompt:
    request: TraceRequest
    outcome: RequestOutcome
    num_done: int = 0
    """Tokens whose KV is there."""
    is_begun: bool = False

    @property
    def kv_tokens(self) -> int:
        return self.request.input_tokens + self.request.output_tokens


class CoupledCluster:
    """Requests go to the instance with the fewest tokens to work off."""

    def __init__(self, plan: CoupledPlan, profile: HardwareProfile) -> None:
        self._events = EventQueue()
        self._instances = [
            CoupledInstance(f"node-{number}", plan, profile, self._events)
            for number in range(plan.num_instances)
        ]

    def run(self, requests: Sequence[TraceRequest]) -> list[RequestOutcome]:
        """Outcomes in the order of the requests."""
        outcomes = []
        for request in requests:
            outcome = RequestOutcome(
                request.number, request.arrival_s, request.input_tokens, request.output_tokens
            )
            outcomes.append(outcome)
            self._events.at(request.arrival_s, partial(self._arrive, request, outcome))
        self._events.run()
        return outcomes

    def _arrive(self, request: TraceRequest, outcome: RequestOutcome) -> None:
        instance = min(self._instances, key=lambda instance: instance.num_tokens)
        outcome.prefill = outcome.decode = instance.name
        instance.queue(request, outcome)


class CoupledInstance:
    """Prompts wait in order of arrival until their KV fits beside all that runs."""

    def __init__(
        self, name: str, plan: CoupledPlan, profile: HardwareProfile, events: EventQueue
    ) -> None:
        self.name = name
        self.num_tokens = 0
        """Of all requests that are here, prompt and answer."""
        self._plan = plan
        self._profile = profile
        self._events = events
        self._waiting: deque[_Prompt] = deque()
        self._batch = RunningBatch(profile, self._finished)
        self._run = StepRun(events, self._ran)
        self._cache = _PrefixCache(profile.kv.device_tokens if plan.has_prefix_cache else 0)
        self._is_prefilling = False

    def queue(self, request: TraceRequest, outcome: RequestOutcome) -> None:
        self.num_tokens += request.input_tokens + request.output_tokens
        self._waiting.append(_Prompt(request, outcome))
        if self._run.is_active:
            self._run.cut()
        elif not self._is_prefilling:
            self._next()

    def _next(self) -> None:
        """Between two steps."""
        if self._waiting and self._may_begin(self._waiting[0]):
            if self._plan.sharing == "chunked":
                self._begin_chunk()
            else:
                self._begin_prompts()
        elif self._batch.sequences:
            self._run.start(*self._batch.next_run())

    def _may_begin(self, prompt: _Prompt) -> bool:
        if self._plan.sharing == "serial":
            return not self._batch.sequences
        return prompt.is_begun or self._batch.has_room(prompt.kv_tokens)

    def _ran(self, num_steps: int, step_s: float) -> None:
        self._batch.advance(num_steps, step_s, now_s=self._events.now_s)
        self._next()

    # -- whole prompts, while decoding stands still ---------------------------------------------------------------

    def _begin_prompts(self) -> None:
        prompts = [self._take()]
        limit = 1 if self._plan.sharing == "serial" else MAX_BATCHED_TOKENS
        num_new = prompts[0].request.input_tokens - prompts[0].num_done
        kv_tokens = prompts[0].kv_tokens
        while self._waiting:
            following = self._waiting[0]
            num_new += following.request.input_tokens
            kv_tokens += following.kv_tokens
            if num_new > limit or not self._batch.has_room(kv_tokens):
                break
            prompts.append(self._take())
        work_s = sum(
            self._profile.chunk_s(p.num_done, p.request.input_tokens - p.num_done) for p in prompts
        )
        prefill_s = work_s + self._profile.prefill.fixed_s
        for prompt in prompts:
            prompt.outcome.prefill_s = prefill_s / len(prompts)
        self._is_prefilling = True
        self._events.at(self._events.now_s + prefill_s, partial(self._end_prompts, prompts))

    def _end_prompts(self, prompts: list[_Prompt]) -> None:
        self._is_prefilling = False
        for prompt in prompts:
            self._first_token(prompt)
        self._next()

    # -- a chunk in every step -----------------------------------------------------------------------------------

    def _begin_chunk(self) -> None:
        prompt = self._waiting[0]
        if not prompt.is_begun:
            self._look_up(prompt)
        budget = max(1, self._plan.chunk_tokens - len(self._batch.sequences))
        size = min(budget, prompt.request.input_tokens - prompt.num_done)
        chunk_s = self._profile.chunk_s(prompt.num_done, size)
        prompt.outcome.prefill_s += chunk_s
        # Without decoding to share it with, a chunk still pays for one pass over the weights.
        step_s = max(self._batch.step_s(), self._profile.decode.step_s) + chunk_s
        self._is_prefilling = True
        self._events.at(self._events.now_s + step_s, partial(self._end_chunk, prompt, size, step_s))

    def _end_chunk(self, prompt: _Prompt, size: int, step_s: float) -> None:
        self._is_prefilling = False
        self._batch.advance(1, step_s, now_s=self._events.now_s)
        prompt.num_done += size
        if prompt.num_done >= prompt.request.input_tokens:
            self._waiting.popleft()
            self._first_token(prompt)
        self._next()

    # -- small things --------------------------------------------------------------------------------------------

    def _take(self) -> _Prompt:
        prompt = self._waiting.popleft()
        self._look_up(prompt)
        return prompt

    def _look_up(self, prompt: _Prompt) -> None:
        """One token at least is computed."""
        request = prompt.request
        matched = self._cache.match(request.blocks) * BLOCK_TOKENS
        prompt.num_done = min(matched, request.input_tokens - 1)
        prompt.outcome.cached_tokens = prompt.num_done
        prompt.is_begun = True

    def _first_token(self, prompt: _Prompt) -> None:
        now_s, request = self._events.now_s, prompt.request
        prompt.outcome.ttft_s = now_s - request.arrival_s
        self._cache.add(request.blocks, num_pinned_tokens=self._batch.kv_tokens)
        if request.output_tokens == 1:
            prompt.outcome.finished_s = now_s
            self._finished(prompt.outcome)
            return
        self._batch.add(
            RunningSequence(prompt.outcome, request.input_tokens, request.output_tokens - 1, now_s)
        )

    def _finished(self, outcome: RequestOutcome) -> None:
        self.num_tokens -= outcome.input_tokens + outcome.output_tokens


class _PrefixCache:
    """Blocks that stay in device memory until running sequences need the room; least recently used go first."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, blocks: Sequence[int]) -> int:
        count = 0
        for block in blocks:
            if block not in self._blocks:
                break
            count += 1
        # Deepest first, so that a suffix is older than its prefix.
        for block in reversed(blocks[:count]):
            self._blocks.move_to_end(block)
        return count

    def add(self, blocks: Sequence[int], *, num_pinned_tokens: int) -> None:
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        room = max(0, (self._num_tokens - num_pinned_tokens) // BLOCK_TOKENS)
        while len(self._blocks) > room:
            self._blocks.popitem(last=False)
