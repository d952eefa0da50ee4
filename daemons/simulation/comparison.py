"""Every placement policy on the same traffic: a trace as it came and faster, and each kind of made-up traffic.

All have the same cluster, admission and constants. Made-up traffic comes at a rate that keeps prefill nodes busy for
LOAD of the time when everything that was ever seen is reused.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from daemons.simulation.disaggregated import POLICY_NAMES, DisaggregatedPlan
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.outcome import Objectives, SimulationResult
from daemons.simulation.simulate import simulate
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest, at_rate
from daemons.simulation.workloads import WORKLOADS, WorkloadPlan, generate

OURS: Final = "time"
SPEEDS: Final = (1.0, 2.0)
LOAD: Final = 0.8
ALLOWED_LOSS: Final = 0.02
"""On made-up traffic, of what another policy has."""


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one traffic; rows of one traffic follow each other, ours first."""

    traffic: str
    policy: str
    requests_per_s: float
    goodput: float
    num_rejected: int
    ttft_mean_s: float
    ttft_p90_s: float
    tbt_p90_s: float
    reused_fraction: float
    goodput_ratio: float
    """Ours to this one's."""
    ttft_ratio: float
    """Of mean times, ours to this one's."""
    is_goal_met: bool
    """On a trace: ours has more goodput or the shorter mean TTFT. On made-up traffic: neither is worse by 2 %."""


@dataclass(frozen=True, slots=True)
class Traffic:
    name: str
    requests: Sequence[TraceRequest]
    is_trace: bool


def traffics(
    trace: Sequence[TraceRequest], num_requests: int, num_prefills: int, profile: HardwareProfile
) -> Iterator[Traffic]:
    """One after the other, for all of them are a lot of memory. `trace` may be empty."""
    for speed in SPEEDS if trace else ():
        yield Traffic(f"trace x{speed:g}", at_rate(trace, speed), is_trace=True)
    for kind in WORKLOADS:
        plan = WorkloadPlan(kind, num_requests, 1.0)
        mean_s = mean_work_s(generate(plan), profile)
        plan = WorkloadPlan(kind, num_requests, LOAD * num_prefills / mean_s)
        yield Traffic(kind, generate(plan), is_trace=False)


def mean_work_s(requests: Sequence[TraceRequest], profile: HardwareProfile) -> float:
    """Prefill of one request, when all blocks that came before it are reused."""
    seen: set[int] = set()
    work_s = 0.0
    for request in requests:
        num_known = next(
            (at for at, block in enumerate(request.blocks) if block not in seen),
            len(request.blocks),
        )
        work_s += profile.prefill_s(request.input_tokens, num_known * BLOCK_TOKENS)
        seen.update(request.blocks)
    return work_s / max(1, len(requests))


def compare_policies(
    traffic: Traffic,
    plan_of: Callable[[str], DisaggregatedPlan],
    profile: HardwareProfile,
    objectives: Objectives,
    progress: Callable[[str], object],
) -> list[PolicyRow]:
    """`plan_of`: the cluster with this policy."""
    results = {}
    for policy in (OURS, *(name for name in POLICY_NAMES if name != OURS)):
        progress(f"{traffic.name}: {len(traffic.requests)} requests, {policy}")
        results[policy] = simulate(traffic.requests, plan_of(policy), profile, objectives)
    span_s = max(traffic.requests[-1].arrival_s, 1e-9)
    return [
        _row(traffic, results[OURS], result, len(traffic.requests) / span_s)
        for result in results.values()
    ]


def _row(
    traffic: Traffic, ours: SimulationResult, result: SimulationResult, requests_per_s: float
) -> PolicyRow:
    goodput_ratio = _ratio(ours.goodput, result.goodput)
    ttft_ratio = _ratio(ours.ttft_s.mean, result.ttft_s.mean)
    if result.policy == OURS:
        is_met = True
    elif traffic.is_trace:
        is_met = goodput_ratio > 1 or ttft_ratio < 1
    else:
        is_met = goodput_ratio >= 1 - ALLOWED_LOSS and ttft_ratio <= 1 + ALLOWED_LOSS
    return PolicyRow(
        traffic=traffic.name,
        policy=result.policy,
        requests_per_s=requests_per_s,
        goodput=result.goodput,
        num_rejected=result.num_rejected,
        ttft_mean_s=result.ttft_s.mean,
        ttft_p90_s=result.ttft_s.p90,
        tbt_p90_s=result.tbt_s.p90,
        reused_fraction=result.reused_fraction,
        goodput_ratio=goodput_ratio,
        ttft_ratio=ttft_ratio,
        is_goal_met=is_met,
    )


def _ratio(one: float, other: float) -> float:
    """Of two that are nothing: 1; of something to nothing no number says it: as if the other were tiny."""
    return one / other if other > 0 else (1.0 if one == 0 else 1e9)
