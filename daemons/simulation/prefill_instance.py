"""One prefill instance: a queue served in order, each prompt alone, loads of reused KV hidden behind compute."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from daemons.simulation.events import EventQueue
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.outcome import RequestOutcome


@dataclass(slots=True)
class Prompt:
    """`pulled_s`: when the last byte of its remote prefix is here. The callbacks come at begin and at first token."""

    outcome: RequestOutcome
    pulled_s: float
    on_start: Callable[[], object]
    on_first_token: Callable[[], object]


class PrefillInstance:
    """Layer by layer, load and compute overlap: the longer of the two is what a prompt takes."""

    def __init__(self, events: EventQueue, profile: HardwareProfile) -> None:
        self._events = events
        self._profile = profile
        self._waiting: deque[Prompt] = deque()
        self._is_busy = False

    def queue(self, prompt: Prompt) -> None:
        self._waiting.append(prompt)
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        self._is_busy = bool(self._waiting)
        if not self._waiting:
            return
        prompt = self._waiting.popleft()
        outcome, now_s = prompt.outcome, self._events.now_s
        compute_s = self._profile.prefill_s(outcome.input_tokens, outcome.cached_tokens)
        load_s = self._profile.load_s(outcome.cached_tokens)
        outcome.prefill_s = max(compute_s, load_s, prompt.pulled_s - now_s)
        prompt.on_start()
        self._events.at(now_s + outcome.prefill_s, lambda: self._done(prompt))

    def _done(self, prompt: Prompt) -> None:
        outcome = prompt.outcome
        outcome.ttft_s = self._events.now_s - outcome.arrival_s
        prompt.on_first_token()
        self._next()
