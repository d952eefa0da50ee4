"""One simulation from start to figures."""

from collections.abc import Sequence
from statistics import median

import msgspec

from daemons.simulation.coupled import CoupledCluster, CoupledPlan
from daemons.simulation.disaggregated import DisaggregatedCluster, DisaggregatedPlan
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.outcome import (
    Objectives,
    RequestOutcome,
    SimulationResult,
    TierUse,
    hits_over_time,
    load_over_time,
    percentiles,
    spread,
)
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest

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
    result = summarize(outcomes, plan, objectives, network_bytes=cluster.network.sent_bytes)
    lower = cluster.pool.lower
    return msgspec.structs.replace(
        result,
        num_hot_copies=cluster.hot.num_made,
        tiers=tier_use(outcomes, plan, cluster, profile),
        lost_gb=lower.num_lost * block_gb(profile) if lower is not None else 0.0,
    )


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
        prefill_s_per_request=sum(outcome.prefill_s * outcome.num_stages for outcome in done)
        / max(1, len(done)),
        prediction_error=_prediction_error(done),
        network_gb=network_bytes / 1e9,
        makespan_s=makespan_s,
        load=load_over_time(outcomes, num_prefills(plan)),
        ttft_percentiles_s=percentiles([outcome.ttft_s for outcome in done]),
        tbt_percentiles_s=percentiles([outcome.tbt_s for outcome in done if outcome.gaps]),
        hits=hits_over_time(outcomes),
        num_pipelined=sum(outcome.num_stages > 1 for outcome in done),
        eviction="" if isinstance(plan, CoupledPlan) else plan.eviction,
        admission="" if isinstance(plan, CoupledPlan) else plan.admission,
    )


def block_gb(profile: HardwareProfile) -> float:
    return BLOCK_TOKENS * profile.kv.bytes_per_token / 1e9


def tier_use(
    outcomes: Sequence[RequestOutcome],
    plan: DisaggregatedPlan,
    cluster: DisaggregatedCluster,
    profile: HardwareProfile,
) -> list[TierUse]:
    """The fastest first."""
    done = [outcome for outcome in outcomes if not outcome.why_rejected]
    num_tokens = max(1, sum(outcome.input_tokens for outcome in done))
    ssd = sum(outcome.ssd_tokens for outcome in done)
    below = sum(outcome.object_tokens for outcome in done)
    device = sum(outcome.device_tokens for outcome in done)
    dram = sum(outcome.cached_tokens for outcome in done) - ssd - below - device
    node_tokens = plan.node_tokens or profile.kv.dram_tokens
    sizes = (
        ("device", device, plan.device_tokens * plan.num_prefills),
        ("dram", dram, node_tokens * plan.num_prefills),
        ("ssd", ssd, plan.ssd_tokens * plan.num_prefills),
        ("object", below, plan.object_tokens),
    )
    devices = cluster.pool.lower.devices if cluster.pool.lower is not None else {}
    return [
        TierUse(
            tier=tier,
            hit_fraction=hits / num_tokens,
            capacity_gb=capacity * profile.kv.bytes_per_token / 1e9,
            read_gb=sum(d.read_bytes for (_, kind), d in devices.items() if kind == tier) / 1e9,
            written_gb=sum(d.written_bytes for (_, kind), d in devices.items() if kind == tier)
            / 1e9,
        )
        for tier, hits, capacity in sizes
        if capacity
    ]


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
