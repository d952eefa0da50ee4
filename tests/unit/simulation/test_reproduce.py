"""The papers' figures that need no trace, and what counts as met."""

from dataclasses import replace

import pytest

from daemons.simulation import pd_ratio
from daemons.simulation.capacity import hit_fraction
from daemons.simulation.disaggregated import DisaggregatedCluster, DisaggregatedPlan
from daemons.simulation.hardware import DEFAULT, find_profile
from daemons.simulation.long_context import RATES, traffic
from daemons.simulation.overload import Rejections
from daemons.simulation.published import REJECTED, SPLIT_EFFECTIVE, SPLIT_MEAN_TTFT_S
from daemons.simulation.reproduce import FIGURES, Comparison
from daemons.simulation.trace import BLOCK_TOKENS
from daemons.simulation.workloads import WorkloadPlan, generate


def test_long_contexts_are_within_a_grid_step_of_the_papers() -> None:
    rows = list(FIGURES["long-context"]([], find_profile(DEFAULT), lambda _: None))
    serial = [row for row in rows if "serial" in row.what]
    assert len(serial) == len(RATES)
    assert all(row.is_goal and row.is_met for row in serial)
    ours = [row for row in rows if "3P+1D" in row.what]
    assert all(one.ours > other.ours for one, other in zip(ours, serial, strict=True))
    assert all(row.published is not None and row.ours >= row.published for row in ours)


def test_the_stand_in_for_the_synthetic_trace_is_like_it() -> None:
    made = pd_ratio.traffic()
    assert len(made) == 3993
    assert sum(one.input_tokens for one in made) / len(made) == pytest.approx(15_325, rel=0.05)
    assert sum(one.output_tokens for one in made) / len(made) == pytest.approx(149, rel=0.05)
    assert len(made) / made[-1].arrival_s == pytest.approx(3.91, rel=0.02)
    refs = sum(len(one.blocks) for one in made)
    distinct = len({block for one in made for block in one.blocks})
    assert 1 - distinct / refs == pytest.approx(0.6396, abs=0.01)
    for capacity, theirs in ((1_000_000, 0.146), (4_000_000, 0.381), (10_000_000, 0.589)):
        assert hit_fraction(made, capacity) == pytest.approx(theirs, abs=0.035)


def test_too_few_prefill_nodes_lose_requests_as_in_the_paper() -> None:
    (few,) = pd_ratio.splits(find_profile(DEFAULT), (5,))
    assert few.goodput == pytest.approx(SPLIT_EFFECTIVE[5], abs=0.05)
    assert few.ttft_s.mean == pytest.approx(SPLIT_MEAN_TTFT_S[5], rel=0.2)


def test_a_decode_node_refuses_after_the_prefill_and_early_rejection_before_it() -> None:
    traffic = generate(WorkloadPlan("unrelated", 300, 4.0))
    profile = find_profile(DEFAULT)
    late = DisaggregatedPlan(6, 1, decode_slo_s=0.05, admission="none")
    early = replace(late, admission="current-load", tbt_slo_s=0.045)
    wasted = {}
    for plan in (late, early):
        outcomes = DisaggregatedCluster(plan, profile).run(traffic)
        assert all(outcome.finished_s > 0 for outcome in outcomes)
        wasted[plan.admission] = sum(o.prefill_s for o in outcomes if o.why_rejected)
        served = [o for o in outcomes if not o.why_rejected]
        assert all(sum(n for _, n in o.gaps) == o.output_tokens - 1 for o in served)
    assert wasted["none"] > 0
    assert wasted["current-load"] < wasted["none"]


def test_rejections_are_compared_in_pairs_and_prediction_has_to_have_the_fewest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = generate(WorkloadPlan("unrelated", 100, 1.0))

    def verdicts(none: float, current: float, predicted: float) -> dict[str, bool]:
        shares = iter((none, current, predicted))
        monkeypatch.setattr(
            "daemons.simulation.reproduce.rejections", lambda *_: Rejections(next(shares), 0.1)
        )
        rows = FIGURES["early-rejection"](asked, find_profile(DEFAULT), lambda _: None)
        return {row.what: row.is_met for row in rows if row.is_goal}

    as_published = verdicts(*REJECTED.values())
    assert len(as_published) == 3
    assert all(as_published.values())
    assert verdicts(0.18, 0.17, 0.185) == {
        "prediction rejects the fewest": False,
        "predicted / current": True,
        "predicted / none": True,
    }
    assert not verdicts(0.18, 0.17, 0.1)["predicted / none"]


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
