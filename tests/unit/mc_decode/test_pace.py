"""What an instance says of its own speed: the time of a token, which drafts share."""

from types import SimpleNamespace
from typing import cast

import pytest

from daemons.mc_decode.pace import Pace
from daemons.mc_decode.request import Request, Stepped


def step(num_right: int = 0, context: int = 100) -> Stepped:
    request = cast(Request, SimpleNamespace(num_prompt_tokens=context, tokens=[]))
    return Stepped(request, [1] * (1 + num_right), None, num_drafts=num_right, num_right=num_right)


def test_the_first_step_is_the_pace_and_later_ones_move_it() -> None:
    pace = Pace()
    assert pace.step_s == 0.0
    pace.observe([step(), step()], 0.1)
    assert pace.step_s == pytest.approx(0.1)
    pace.observe([step(), step()], 0.2)
    assert pace.step_s == pytest.approx(0.9 * 0.1 + 0.1 * 0.2)


def test_tokens_that_drafts_bring_share_the_time_of_their_step() -> None:
    pace = Pace()
    for _ in range(200):
        pace.observe([step(num_right=3)], 0.08)
    assert pace.step_s == pytest.approx(0.02, rel=0.01)
