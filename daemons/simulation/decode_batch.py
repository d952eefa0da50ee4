"""Continuous batching in steps that are counted, not made: between two changes of the batch all steps are alike.

So a run of 200 steps costs one event. Sequences join and leave between steps only.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from daemons.simulation.events import EventQueue
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.outcome import RequestOutcome

MAX_RUN_STEPS: Final = 256
"""The context grows within a run, and the step with it; its middle stands for all."""
MAX_SEQUENCES: Final = 256
_NOT_A_DELAY_S: Final = 1e-9

Finished = Callable[[RequestOutcome], object]


@dataclass(slots=True, eq=False)
class RunningSequence:
    """`last_token_s`: when its newest token came."""

    outcome: RequestOutcome
    num_context: int
    num_left: int
    last_token_s: float

    @property
    def kv_tokens(self) -> int:
        """When it ends."""
        return self.num_context + self.num_left


class RunningBatch:
    """The sequences that take part in a step, and the KV they may come to hold."""

    def __init__(self, profile: HardwareProfile, finished: Finished) -> None:
        self.sequences: list[RunningSequence] = []
        self.kv_tokens = 0
        self._profile = profile
        self._finished = finished

    def has_room(self, kv_tokens: int) -> bool:
        """An empty batch takes anything, as what fits nowhere must not wait for ever."""
        if not self.sequences:
            return True
        fits = self.kv_tokens + kv_tokens <= self._profile.kv.device_tokens
        return fits and len(self.sequences) < MAX_SEQUENCES

    def add(self, sequence: RunningSequence) -> None:
        self.sequences.append(sequence)
        self.kv_tokens += sequence.kv_tokens

    def next_run(self) -> tuple[int, float]:
        """How many steps until someone leaves, and what each takes."""
        num_steps = min(MAX_RUN_STEPS, min(sequence.num_left for sequence in self.sequences))
        return num_steps, self.step_s(num_steps)

    def step_s(self, num_steps: int = 1) -> float:
        """Mean of the next so many steps; 0 when nobody takes part."""
        count = len(self.sequences)
        if not count:
            return 0.0
        context = sum(sequence.num_context for sequence in self.sequences)
        return self._profile.step_s(count, context + count * num_steps / 2)

    def advance(self, num_steps: int, step_s: float, *, now_s: float) -> None:
        """So many steps end now. A wait before them lengthens the first gap."""
        started_s = now_s - num_steps * step_s
        over = []
        for sequence in self.sequences:
            delay_s = started_s - sequence.last_token_s
            gaps = sequence.outcome.gaps
            if delay_s > _NOT_A_DELAY_S:
                gaps.append((delay_s + step_s, 1))
            if num_steps > (delay_s > _NOT_A_DELAY_S):
                gaps.append((step_s, num_steps - (delay_s > _NOT_A_DELAY_S)))
            sequence.last_token_s = now_s
            sequence.num_context += num_steps
            sequence.num_left -= num_steps
            if not sequence.num_left:
                over.append(sequence)
        for sequence in over:
            self.sequences.remove(sequence)
            self.kv_tokens -= sequence.kv_tokens
            sequence.outcome.finished_s = now_s
            self._finished(sequence.outcome)


class StepRun:
    """Like steps one after the other on the virtual clock, which can be cut short after the one under way."""

    def __init__(self, events: EventQueue, on_end: Callable[[int, float], object]) -> None:
        self._events = events
        self._on_end = on_end
        self._number = 0
        self._start_s = 0.0
        self._num_steps = 0
        self._step_s = 0.0

    @property
    def is_active(self) -> bool:
        return self._num_steps > 0

    def start(self, num_steps: int, step_s: float) -> None:
        self._start_s, self._step_s = self._events.now_s, step_s
        self._plan(num_steps)

    def cut(self) -> None:
        """End with the step under way."""
        num_begun = int((self._events.now_s - self._start_s) / self._step_s) + 1
        if num_begun < self._num_steps:
            self._plan(num_begun)

    def _plan(self, num_steps: int) -> None:
        self._number += 1
        self._num_steps = num_steps
        end_s = self._start_s + num_steps * self._step_s
        self._events.at(end_s, partial(self._end, self._number))

    def _end(self, number: int) -> None:
        if number == self._number:
            num_steps, self._num_steps = self._num_steps, 0
            self._on_end(num_steps, self._step_s)


class DecodeInstance:
    """An instance that only decodes: first come, first served."""

    def __init__(self, events: EventQueue, profile: HardwareProfile, finished: Finished) -> None:
        self._events = events
        self._profile = profile
        self._batch = RunningBatch(profile, finished)
        self._waiting: deque[RunningSequence] = deque()
        self._run = StepRun(events, self._ended)

    def join(self, sequence: RunningSequence) -> None:
        """It takes part from the next step on, once its KV fits."""
        self._waiting.append(sequence)
        if self._run.is_active:
            self._run.cut()
        else:
            self._begin()

    @property
    def step_s(self) -> float:
        """One step of all that are here and wait here; 0 of nobody."""
        everyone = [*self._batch.sequences, *self._waiting]
        if not everyone:
            return 0.0
        return self._profile.step_s(len(everyone), sum(each.num_context for each in everyone))

    def _begin(self) -> None:
        while self._waiting and self._batch.has_room(self._waiting[0].kv_tokens):
            self._batch.add(self._waiting.popleft())
        if self._batch.sequences:
            self._run.start(*self._batch.next_run())

    def _ended(self, num_steps: int, step_s: float) -> None:
        self._batch.advance(num_steps, step_s, now_s=self._events.now_s)
        self._begin()
