"""The virtual clock: what happens next, in order of time and, at one time, in the order it was planned."""

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], object]


class EventQueue:
    """`now_s` moves only when an event is taken."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Action]] = []
        self._numbers = count()

    def at(self, when_s: float, action: Action) -> None:
        """Plan for a time that is not past."""
        heapq.heappush(self._events, (max(when_s, self.now_s), next(self._numbers), action))

    def run(self) -> None:
        """Until nothing is planned any more."""
        while self._events:
            self.now_s, _, action = heapq.heappop(self._events)
            action()
