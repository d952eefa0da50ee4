"""The measured decisions are real ones: prompts match whole, and work spreads."""

from daemons.simulation.crowd import Crowd, CrowdPlan
from daemons.simulation.hardware import DEFAULT, find_profile
from daemons.simulation.trace import BLOCK_TOKENS


def test_every_prompt_matches_whole_and_all_instances_get_work() -> None:
    crowd = Crowd(CrowdPlan(12, 10), find_profile(DEFAULT))
    assert {crowd.match() for _ in range(40)} == {10}
    placements = [crowd.decide() for _ in range(60)]
    assert all(placement.matched_tokens == 10 * BLOCK_TOKENS for placement in placements)
    assert len({placement.prefill.node for placement in placements}) == 6
    assert len({placement.decode.node for placement in placements}) == 6
