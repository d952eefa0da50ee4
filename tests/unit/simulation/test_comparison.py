"""Policies beside each other: what traffic they get, and when ours counts as worse."""

from dataclasses import replace

import pytest

from daemons.simulation import comparison
from daemons.simulation.comparison import Traffic, compare_policies, mean_work_s, traffics
from daemons.simulation.disaggregated import POLICY_NAMES, DisaggregatedPlan
from daemons.simulation.hardware import DEFAULT, find_profile
from daemons.simulation.outcome import Objectives
from daemons.simulation.trace import TraceRequest
from daemons.simulation.workloads import WORKLOADS

PROFILE = find_profile(DEFAULT)
PLAN = DisaggregatedPlan(2, 2)


def trace(num_requests: int, gap_s: float) -> list[TraceRequest]:
    return [
        TraceRequest(n, n * gap_s, 5120, 10, tuple(range(1000 * (n % 3), 1000 * (n % 3) + 10)))
        for n in range(num_requests)
    ]


def test_a_trace_is_replayed_as_it_came_and_faster_before_all_made_up_traffic() -> None:
    made = list(traffics(trace(20, 1.0), 30, 2, PROFILE))
    assert [each.name for each in made] == ["trace x1", "trace x2", *WORKLOADS]
    assert [each.is_trace for each in made] == [True, True, *[False] * len(WORKLOADS)]
    assert made[1].requests[-1].arrival_s == made[0].requests[-1].arrival_s / 2
    assert [each.name for each in traffics([], 30, 2, PROFILE)] == list(WORKLOADS)
    unrelated = made[-1].requests
    load = 30 * mean_work_s(unrelated, PROFILE) / unrelated[-1].arrival_s / 2
    assert 0.4 < load < 1.6, "so few come by chance a little faster or slower"


def test_work_is_that_of_what_nobody_sent_before() -> None:
    asked = trace(6, 1.0)
    first, again = PROFILE.prefill_s(5120, 0), PROFILE.prefill_s(5120, 5120)
    assert mean_work_s(asked, PROFILE) == pytest.approx((3 * first + 3 * again) / 6)


def test_ours_comes_first_and_is_measured_against_all(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic("trace x1", trace(40, 0.2), is_trace=True)

    def plan_of(policy: str) -> DisaggregatedPlan:
        return replace(PLAN, policy=policy)

    def compared() -> list[comparison.PolicyRow]:
        return compare_policies(traffic, plan_of, PROFILE, Objectives(), lambda _: None)

    rows = compared()
    assert rows[0].policy == "time"
    assert sorted(row.policy for row in rows) == sorted(POLICY_NAMES)
    ours, worst = rows[0], next(row for row in rows if row.policy == "random")
    assert ours.is_goal_met
    assert (ours.goodput_ratio, ours.ttft_ratio) == (1.0, 1.0)
    assert worst.ttft_ratio == pytest.approx(ours.ttft_mean_s / worst.ttft_mean_s)
    # With another one for ours, the same measure finds that it is worse.
    monkeypatch.setattr(comparison, "OURS", "random")
    by_policy = {row.policy: row for row in compared()}
    assert not by_policy["time"].is_goal_met
    traffic = replace(traffic, is_trace=False)
    assert not next(row for row in compared() if row.policy == "time").is_goal_met
