"""What verbs of `mcctl simulate` do: get the requests, and replay them against each plan."""

from collections.abc import Callable, Sequence
from pathlib import Path

from daemons.core.errors import NotFound
from daemons.core.units import format_count
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.outcome import Objectives, SimulationResult
from daemons.simulation.simulate import ClusterPlan, name_of, policy_of, simulate
from daemons.simulation.trace import TraceRequest, at_rate, read_trace
from daemons.simulation.workloads import WORKLOADS, WorkloadPlan, generate
from mcctl.commands.simulate.flags import MADE_UP_REQUESTS


def requests_of(trace: str, rate: float, limit: int, seed: int) -> list[TraceRequest]:
    if trace in WORKLOADS:
        count = min(limit, MADE_UP_REQUESTS)
        return generate(WorkloadPlan(trace, count, rate, seed))
    if not Path(trace).exists():
        raise NotFound(f"trace {trace}: no such file, nor made-up traffic: {', '.join(WORKLOADS)}")
    return at_rate(read_trace(Path(trace), limit=limit), rate)


def simulate_all(
    requests: Sequence[TraceRequest],
    plans: Sequence[ClusterPlan],
    profile: HardwareProfile,
    objectives: Objectives,
    progress: Callable[[str], object],
) -> list[SimulationResult]:
    results = []
    for number, cluster in enumerate(plans, 1):
        what = f"{name_of(cluster)}, {policy_of(cluster)}"
        progress(f"{number}/{len(plans)}: {format_count(len(requests), 'request')} on {what}")
        results.append(simulate(requests, cluster, profile, objectives))
    return results
