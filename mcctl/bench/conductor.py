"""mcctl bench conductor: decisions a second, beside the bare match of the same prompts in the same run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import msgspec

from daemons.simulation.crowd import Crowd, CrowdPlan
from daemons.simulation.hardware import HardwareProfile
from mcctl.model_store import Progress

_WARM_UP = 20
_ROUND = 10


class DecisionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. `match_p50_s`: finding and leasing the prompt's prefix, the least any decision does."""

    num_instances: int
    num_blocks: int
    policy: str
    decisions_per_s: float
    p50_s: float
    p99_s: float
    match_p50_s: float
    ratio: float
    """Of a decision to the bare match."""


class ConductorResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench conductor --output json` prints; fields are only ever added."""

    rows: list[DecisionRow]


@dataclass(frozen=True, slots=True)
class ConductorPlan:
    """`num_decisions` are timed for each number of instances and policy."""

    instances: Sequence[int]
    policies: Sequence[str]
    num_blocks: int
    num_decisions: int


def run(plan: ConductorPlan, profile: HardwareProfile, progress: Progress) -> ConductorResult:
    rows = []
    for count in plan.instances:
        for policy in plan.policies:
            progress(f"{count} instances, {policy}")
            crowd = Crowd(CrowdPlan(count, plan.num_blocks, policy), profile)
            rows.append(_measured(crowd, plan, count, policy))
    return ConductorResult(rows=rows)


def _measured(crowd: Crowd, plan: ConductorPlan, count: int, policy: str) -> DecisionRow:
    """Decisions and matches in turns, so that a busy machine slows both alike."""
    for _ in range(_WARM_UP):
        crowd.decide()
        crowd.match()
    decisions: list[float] = []
    matches: list[float] = []
    while len(decisions) < plan.num_decisions:
        decisions += [_timed(crowd.decide) for _ in range(_ROUND)]
        matches += [_timed(crowd.match) for _ in range(_ROUND)]
    p50_s, match_p50_s = median(decisions), median(matches)
    return DecisionRow(
        num_instances=count,
        num_blocks=plan.num_blocks,
        policy=policy,
        decisions_per_s=len(decisions) / sum(decisions),
        p50_s=p50_s,
        p99_s=quantiles(decisions, n=100)[98],
        match_p50_s=match_p50_s,
        ratio=p50_s / match_p50_s,
    )


def _timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s
