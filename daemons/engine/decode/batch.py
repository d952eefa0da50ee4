"""Continuous batching of decode: who takes part in the next step. Pure; the caller runs the model.

Sequences join and leave between steps only, so a step's sequences and its tokens always correspond.
"""

from collections import deque
from collections.abc import Sequence as Many

from daemons.engine.decode.sequence import Sequence


class DecodeBatch:
    """First come, first served, at most `max_batch` rows a step; a running sequence never waits."""

    def __init__(self, max_batch: int) -> None:
        self.max_batch = max_batch
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._in_step: list[Sequence] = []

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def join(self, sequence: Sequence) -> None:
        """Queue a sequence whose prompt KV is in its slot and whose first token is sampled."""
        assert sequence.finish is None, "a finished sequence cannot join"
        self._waiting.append(sequence)

    def begin_step(self) -> list[Sequence]:
        """The sequences of this step, in row order; empty when there is nothing to do."""
        assert not self._in_step, "the step before has not ended"
        while self._waiting and len(self._running) < self.max_batch:
            self._running.append(self._waiting.popleft())
        self._in_step = list(self._running)
        return self._in_step

    def end_step(self, made: Many[Many[int]]) -> list[Sequence]:
        """Append each sequence's tokens, up to its last; those that are over now, whose slots may be freed.

        Those cancelled during the step are among them: their slot was still being written.
        """
        over: list[Sequence] = []
        for sequence, tokens in zip(self._in_step, made, strict=True):
            for token in tokens:
                if sequence.finish is None:
                    sequence.append(token)
            if sequence.finish is not None:
                over.append(sequence)
                self._running.remove(sequence)
        self._in_step = []
        return over

    def cancel(self, request_id: str) -> Sequence | None:
        """Give a request up; returned if its slot may be freed at once.

        One that takes part in a step under way is returned by `end_step` instead; an unknown one
        by nobody, as it may just have finished.
        """
        for sequence in [*self._waiting, *self._running]:
            if sequence.request_id == request_id and sequence.finish is None:
                sequence.finish = "cancelled"
                if sequence in self._in_step:
                    return None
                (self._running if sequence in self._running else self._waiting).remove(sequence)
                return sequence
        return None

    def check_invariants(self) -> None:
        assert len(self._running) <= self.max_batch
        assert all(sequence.finish is None for sequence in self._waiting)
        assert all(
            sequence.finish is None or sequence in self._in_step for sequence in self._running
        )
