"""One simulation from start to figures."""

from collections.abc import Sequence
from statistics import median

from daemons.simulation.coupled import CoupledCluster, CoupledPlan
from daemons.simulation.disaggregated import DisaggregatedCluster, DisaggregatedPlan
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.outcome import (
    Objectives,
    RequestOutcome,
    SimulationResult,
    load_over_time,
    percentiles,
    spread,
)
from daemons.simulation.trace import TraceRequest

ClusterPlan = DisaggregatedPlan | CoupledPlan


def simulate(
    requests: Sequence[TraceRequest],
    plan: ClusterPlan,
    profile: HardwareProfile,
    objectives: Objectives,
) -> SimulationResult:
    """The same arguments give the same result."""
    if isinstance(plan, CoupledPlan):
        outcomes = CoupledCluster(plan, profile).run(requests)
        return summarize(outcomes, plan, objectives, network_bytes=0)
    cluster = DisaggregatedCluster(plan, profile)
    outcomes = cluster.run(requests)
    return summarize(outcomes, plan, objectives, network_bytes=cluster.network.sent_bytes)


def summarize(
    outcomes: Sequence[RequestOutcome],
    plan: ClusterPlan,
    objectives: Objectives,
    *,
    network_bytes: int,
) -> SimulationResult:
    """Times are of those that were served, shares are of all."""
    done = [outcome for outcome in outcomes if not outcome.why_rejected]
    makespan_s = max((outcome.finished_s for outcome in done), default=0.0)
    num_tokens = max(1, sum(outcome.input_tokens for outcome in done))
    met = sum(objectives.are_met(outcome) for outcome in outcomes)
    return SimulationResult(
        cluster=name_of(plan),
        policy=policy_of(plan),
        num_prefills=num_prefills(plan),
        num_requests=len(outcomes),
        num_rejected=len(outcomes) - len(done),
        ttft_s=spread([outcome.ttft_s for outcome in done]),
        tbt_s=spread([outcome.tbt_s for outcome in done if outcome.gaps]),
        goodput=met / max(1, len(outcomes)),
        requests_per_s=len(done) / makespan_s if makespan_s else 0.0,
        reused_fraction=sum(outcome.cached_tokens for outcome in done) / num_tokens,
        remote_fraction=sum(outcome.remote_tokens for outcome in done) / num_tokens,
        prefill_s_per_request=sum(outcome.prefill_s for outcome in done) / max(1, len(done)),
        prediction_error=_prediction_error(done),
        network_gb=network_bytes / 1e9,
        makespan_s=makespan_s,
        load=load_over_time(outcomes, num_prefills(plan)),
        ttft_percentiles_s=percentiles([outcome.ttft_s for outcome in done]),
        tbt_percentiles_s=percentiles([outcome.tbt_s for outcome in done if outcome.gaps]),
        eviction="" if isinstance(plan, CoupledPlan) else plan.eviction,
    )


def name_of(plan: ClusterPlan) -> str:
    """8P+8D, or 16 coupled."""
    if isinstance(plan, CoupledPlan):
        cache = " with prefix cache" if plan.has_prefix_cache else ""
        return f"{plan.num_instances} coupled{cache}"
    return f"{plan.num_prefills}P+{plan.num_decodes}D"


def policy_of(plan: ClusterPlan) -> str:
    """Of the Conductor, or how coupled instances share a step."""
    return plan.sharing if isinstance(plan, CoupledPlan) else plan.policy


def num_prefills(plan: ClusterPlan) -> int:
    return plan.num_instances if isinstance(plan, CoupledPlan) else plan.num_prefills


def _prediction_error(done: Sequence[RequestOutcome]) -> float:
    errors = [
        abs(outcome.predicted_ttft_s - outcome.ttft_s) / outcome.ttft_s
        for outcome in done
        if outcome.predicted_ttft_s > 0 and outcome.ttft_s > 0
    ]
    return median(errors) if errors else 0.0
