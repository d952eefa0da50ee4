"""Time as a value: loops and tables take a Clock, so that tests and the simulator can drive it."""

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds from an arbitrary start; never goes back."""

monotonic: Clock = time.monotonic


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
