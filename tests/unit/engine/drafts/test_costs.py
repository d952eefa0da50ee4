"""What drafts add to a step is found among steps of uneven pace, and not believed after a few of them."""

import random

import pytest

from daemons.engine.drafts.costs import DraftCosts, MeasuredCosts

TRUE = DraftCosts(row=0.04, length=0.1)


def measured(num_steps: int, sigma: float, batch: int = 8) -> DraftCosts:
    stream, costs = random.Random(1), MeasuredCosts()
    for number in range(num_steps):
        drafts = [stream.choice([0, 0, 1, 3]) for _ in range(batch)] if number % 2 else [0] * batch
        pace_s = 0.05 * stream.lognormvariate(0, sigma)
        costs.observe(drafts, 500 * batch + number, pace_s * (1 + TRUE.of(drafts)))
    return costs.costs


def test_costs_of_a_step_are_those_of_its_rows_and_of_its_lengths_but_one() -> None:
    assert TRUE.of([0, 0, 0]) == 0
    assert TRUE.of([1, 1, 1]) == pytest.approx(0.12)
    assert TRUE.of([0, 1, 3]) == pytest.approx(4 * 0.04 + 2 * 0.1)


@pytest.mark.parametrize("sigma", [0.02, 0.3])
def test_costs_are_found_whatever_else_the_machine_does(sigma: float) -> None:
    found = measured(1200, sigma)
    for drafts in ([1] * 8, [3, *[0] * 7], [1, 3, *[0] * 6]):
        assert found.of(drafts) == pytest.approx(TRUE.of(drafts), rel=0.35)


def test_a_guess_stands_until_something_is_known() -> None:
    assert measured(30, 0.3) == DraftCosts()
    few, guess = measured(48, 0.3), DraftCosts()
    assert abs(few.row - guess.row) < 0.5 * guess.row + 0.01


def test_steps_without_drafts_and_of_no_time_change_nothing_and_do_not_hide_later_ones() -> None:
    costs = MeasuredCosts()
    for _ in range(200):
        costs.observe([0], 100, 0.0)
    assert costs.costs == DraftCosts()
    for number in range(400):
        drafts = [number % 2]
        costs.observe(drafts, 100, 0.05 * (1 + 10 * TRUE.of(drafts)))
    assert costs.costs.row > 0.2
