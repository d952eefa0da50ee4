"""What the benchmarks of the store measure with."""

import time
from collections.abc import Callable

Progress = Callable[[str], object]


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s
