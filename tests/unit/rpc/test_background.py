"""Background work: often while there is some, seldom else, at once when it is told of some."""

from collections.abc import Iterator

import pytest

from daemons.core.clock import ManualClock
from daemons.rpc import Loop
from daemons.rpc.background import BUSY_S, IDLE_S, Background


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.loop = Loop(self.clock)
        self.left = 0
        self.num_pieces = 0
        self.background = Background(self.loop, self._piece)

    def pass_time(self, seconds: float) -> int:
        """In small steps; how many pieces were done."""
        before, end_s = self.num_pieces, self.clock() + seconds
        while self.clock() < end_s:
            self.clock.advance(0.001)
            self.loop.run_once(0)
        return self.num_pieces - before

    def _piece(self) -> bool:
        self.num_pieces += 1
        if self.left < 0:
            raise ValueError("a bug")
        self.left = max(0, self.left - 1)
        return self.left > 0


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.loop.close()


def test_without_work_it_looks_at_times(bench: Bench) -> None:
    assert 3 <= bench.pass_time(4 * IDLE_S) <= 4


def test_work_that_is_told_of_is_begun_at_once_and_goes_on(bench: Bench) -> None:
    bench.left = 5
    bench.background.wake()
    bench.background.wake()
    assert bench.pass_time(2 * BUSY_S) in (1, 2)
    bench.pass_time(6 * BUSY_S)
    assert bench.left == 0
    assert bench.num_pieces == 5


def test_a_piece_that_fails_is_not_the_last(bench: Bench) -> None:
    bench.left = -1
    assert bench.pass_time(IDLE_S + 0.01) == 1
    bench.left = 1
    assert bench.pass_time(IDLE_S + 0.01) == 1
    assert bench.loop.num_errors == 1
