"""The papers' figures that need no trace, and what counts as met."""

import pytest

from daemons.simulation.hardware import DEFAULT, find_profile
from daemons.simulation.long_context import RATES, traffic
from daemons.simulation.reproduce import FIGURES, Comparison
from daemons.simulation.trace import BLOCK_TOKENS


def test_long_contexts_are_within_a_grid_step_of_the_papers() -> None:
    rows = list(FIGURES["long-context"]([], find_profile(DEFAULT), lambda _: None))
    serial = [row for row in rows if "serial" in row.what]
    assert len(serial) == len(RATES)
    assert all(row.is_goal and row.is_met for row in serial)
    ours = [row for row in rows if "3P+1D" in row.what]
    assert all(one.ours > other.ours for one, other in zip(ours, serial, strict=True))
    assert all(row.published is not None and row.ours >= row.published for row in ours)


def test_half_of_each_long_prompt_is_shared() -> None:
    first, second, *_ = traffic(16_384, 1.0)
    shared = set(first.blocks) & set(second.blocks)
    assert len(shared) * BLOCK_TOKENS == 8192
    assert first.blocks[: len(shared)] == second.blocks[: len(shared)]


@pytest.mark.parametrize(
    ("ours", "is_relative", "is_met"),
    [(0.33, False, True), (0.37, False, False), (0.33, True, False), (0.31, True, True)],
)
def test_tolerances(ours: float, is_relative: bool, is_met: bool) -> None:
    row = Comparison(
        figure="f", what="w", ours=ours, published=0.3, tolerance=0.05, is_relative=is_relative
    )
    assert row.is_goal
    assert row.is_met == is_met
    assert Comparison(figure="f", what="w", ours=9.0, published=0.3).is_met
