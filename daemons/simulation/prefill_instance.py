"""One prefill instance: a queue served in order, each prompt alone, loads of reused KV hidden behind compute.

A prompt of a group stands in the queue of each of its instances and begins when it is at the head of all of them.
Groups are queued at all their instances at once, so two of them never wait for each other.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from daemons.conductor.pipeline import pipelined_s
from daemons.simulation.events import EventQueue
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.outcome import RequestOutcome


@dataclass(slots=True)
class Prompt:
    """`pulled_s`: when the last byte of its remote prefix is here. `on_turn` comes before its work is known."""

    outcome: RequestOutcome
    pulled_s: float
    on_start: Callable[[], object]
    on_first_token: Callable[[], object]
    on_turn: Callable[[], object] = lambda: None
    num_missing: int = 1
    """Instances of its group that it is not yet at the head of."""


class PrefillInstance:
    """Layer by layer, load and compute overlap: the longer of the two is what a prompt takes."""

    def __init__(self, events: EventQueue, profile: HardwareProfile, chunk_tokens: int) -> None:
        self._events = events
        self._profile = profile
        self._chunk_tokens = chunk_tokens
        self._waiting: deque[tuple[Prompt, tuple[PrefillInstance, ...]]] = deque()
        self._is_busy = False

    def queue(self, prompt: Prompt, helpers: tuple["PrefillInstance", ...] = ()) -> None:
        group = (self, *helpers)
        prompt.num_missing = len(group)
        for instance in group:
            instance._waiting.append((prompt, group))
        for instance in group:
            if not instance._is_busy:
                instance._next()

    def _next(self) -> None:
        self._is_busy = bool(self._waiting)
        if not self._waiting:
            return
        prompt, group = self._waiting.popleft()
        prompt.num_missing -= 1
        if prompt.num_missing:
            return  # the others of its group come to it later; this one waits for them
        prompt.on_turn()
        outcome, now_s = prompt.outcome, self._events.now_s
        outcome.prefill_s = max(self._work_s(outcome, len(group)), prompt.pulled_s - now_s)
        prompt.on_start()
        self._events.at(now_s + outcome.prefill_s, lambda: self._done(prompt, group))

    def _work_s(self, outcome: RequestOutcome, num_stages: int) -> float:
        compute_s = pipelined_s(
            self._profile.cost_model(),
            outcome.input_tokens,
            outcome.cached_tokens,
            num_stages=num_stages,
            chunk_tokens=self._chunk_tokens,
        )
        num_loaded = outcome.cached_tokens - outcome.device_tokens
        return max(compute_s, self._profile.load_s(num_loaded) / num_stages)

    def _done(self, prompt: Prompt, group: tuple["PrefillInstance", ...]) -> None:
        outcome = prompt.outcome
        outcome.ttft_s = self._events.now_s - outcome.arrival_s
        prompt.on_first_token()
        for instance in group:
            instance._next()
