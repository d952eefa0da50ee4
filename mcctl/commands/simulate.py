"""mcctl simulate: replay a trace, or made-up traffic, against a cluster that need not exist."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from daemons.core.errors import McError, NotFound
from daemons.simulation import reproduce as figures
from daemons.simulation.capacity import CapacityPoint, hit_curve, num_distinct_tokens
from daemons.simulation.comparison import PolicyRow, compare_policies, traffics
from daemons.simulation.coupled import CoupledPlan
from daemons.simulation.disaggregated import ADMISSION_NAMES, POLICY_NAMES, DisaggregatedPlan
from daemons.simulation.hardware import DEFAULT, HardwareProfile, find_profile
from daemons.simulation.outcome import Objectives, SimulationResult
from daemons.simulation.pool import EVICTION_NAMES
from daemons.simulation.simulate import ClusterPlan, name_of, policy_of, simulate
from daemons.simulation.sizing import MemoryChoice, best_choice, sizes_to_try
from daemons.simulation.trace import TraceRequest, at_rate, read_trace
from daemons.simulation.workloads import WORKLOADS, WorkloadPlan, generate
from mcctl import render
from mcctl.commands import new_app
from mcctl.output_schema import prints
from mcctl.settings import settings_of
from mcctl.views.plan import PlanResult, show_plan
from mcctl.views.plot_file import check_plot, write_plot
from mcctl.views.simulation import (
    COMPARISON_COLUMNS,
    POLICY_COLUMNS,
    RUN_COLUMNS,
    show_tiers,
    title,
)
from mcctl.views.simulation_plot import plan_charts, run_charts

app = new_app()

_CAPACITIES: Final = (1, 2, 3, 5, 10, 20, 50, 100)
"""Millions of tokens."""

_MADE_UP_REQUESTS: Final = 2000
_MAX_NODES: Final = 4096
"""Each request looks at every node."""

TraceArgument = Annotated[
    str, typer.Argument(help=f"A JSONL trace, or made-up traffic: {', '.join(WORKLOADS)}.")
]
Hardware = Annotated[str, typer.Option(help="A profile's name or TOML file.", metavar="NAME")]
Rate = Annotated[
    float,
    typer.Option(
        min=0.001, help="A trace: so many times as fast; made-up traffic: requests a second."
    ),
]
Limit = Annotated[int, typer.Option(min=1, help="At most so many requests.")]
Seed = Annotated[int, typer.Option(help="Of made-up traffic and of the random policy.")]
Prefills = Annotated[int, typer.Option("--prefill", min=1, max=_MAX_NODES, help="Prefill nodes.")]
Decodes = Annotated[int, typer.Option("--decode", min=1, max=_MAX_NODES, help="Decode nodes.")]
DramTokens = Annotated[
    int, typer.Option(min=0, help="KV each prefill node keeps in DRAM; 0: the profile's.")
]
DeviceTokens = Annotated[
    int,
    typer.Option(
        min=0, help="KV each prefill node keeps in its devices once a prompt is done; 0: none."
    ),
]
SsdTokens = Annotated[
    int, typer.Option(min=0, help="KV each prefill node keeps on an SSD below its DRAM; 0: none.")
]
ObjectTokens = Annotated[
    int, typer.Option(min=0, help="KV that one object store for all nodes keeps; 0: none.")
]
Plot = Annotated[Path | None, typer.Option(help="Also draw it: .svg, or .png.", metavar="FILE")]
TtftSlo = Annotated[float, typer.Option(min=0.001, help="Seconds to the first token.")]
TbtSlo = Annotated[float, typer.Option(min=0.0001, help="Seconds between tokens.")]


@app.callback()
def _noun() -> None:
    """Replay traffic against a modelled cluster; the Conductor and the directory are the live ones."""


@app.command()
@prints({"runs": list[SimulationResult]})
def run(
    context: typer.Context,
    trace: TraceArgument,
    prefill: Prefills = 8,
    decode: Decodes = 8,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(POLICY_NAMES)}, or all; may be repeated; time otherwise.",
            autocompletion=lambda: [*POLICY_NAMES, "all"],
        ),
    ] = None,
    coupled: Annotated[
        bool, typer.Option("--coupled", help="Also plain instances that do both, as many in all.")
    ] = False,
    hardware: Hardware = DEFAULT,
    rate: Rate = 1.0,
    limit: Limit = 1_000_000,
    device_tokens: DeviceTokens = 0,
    dram_tokens: DramTokens = 0,
    ssd_tokens: SsdTokens = 0,
    object_tokens: ObjectTokens = 0,
    hot_uses: Annotated[
        int,
        typer.Option(
            min=0, help="Reads a minute for which a block gets another replica, up to 3; 0: none."
        ),
    ] = 0,
    pipeline: Annotated[
        int,
        typer.Option(min=1, max=64, help="Prefill nodes that may share one long prompt; 1: none."),
    ] = 1,
    eviction: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(EVICTION_NAMES)}, or all; may be repeated; lru otherwise.",
            autocompletion=lambda: [*EVICTION_NAMES, "all"],
        ),
    ] = None,
    max_queue: Annotated[
        float, typer.Option(min=0, help="Reject whoever would queue longer; 0 rejects nobody.")
    ] = 0.0,
    admission: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(ADMISSION_NAMES)}, or all; may be repeated; none otherwise.",
            autocompletion=lambda: [*ADMISSION_NAMES, "all"],
        ),
    ] = None,
    ttft_slo: TtftSlo = 30.0,
    tbt_slo: TbtSlo = 0.1,
    seed: Seed = 0,
    plot: Plot = None,
) -> None:
    """Times, reuse and goodput of policies on the same traffic.

    \b
    Example: mcctl simulate run conversation_trace.jsonl --policy all --coupled
    Example: mcctl simulate run agents --rate 5 --prefill 4 --decode 2
    \b
    Example: mcctl simulate run trace.jsonl --dram-tokens 500000
    """
    if plot is not None:
        check_plot(plot)
    profile = find_profile(hardware)
    plans: list[ClusterPlan] = [
        DisaggregatedPlan(
            prefill,
            decode,
            name,
            max_queue_s=max_queue or float("inf"),
            admission=mode,
            ttft_slo_s=ttft_slo,
            tbt_slo_s=tbt_slo,
            seed=seed,
            device_tokens=device_tokens,
            node_tokens=dram_tokens,
            eviction=which,
            ssd_tokens=ssd_tokens,
            object_tokens=object_tokens,
            hot_uses=hot_uses,
            max_pipeline=pipeline,
        )
        for name in _chosen(policy, POLICY_NAMES, "time")
        for which in _chosen(eviction, EVICTION_NAMES, "lru")
        for mode in _chosen(admission, ADMISSION_NAMES, "none")
    ]
    if coupled:
        plans += [
            CoupledPlan(prefill + decode, sharing, has_prefix_cache)
            for sharing in ("stalling", "chunked")
            for has_prefix_cache in (False, True)
        ]
    requests = _requests(trace, rate, limit, seed)
    results = _simulate_all(requests, plans, profile, Objectives(ttft_slo, tbt_slo))
    output = settings_of(context).output
    render.emit(output, {"runs": results}, RUN_COLUMNS, results, title=title(trace, requests))
    if output == "table" and any(len(result.tiers) > 1 for result in results):
        show_tiers(results)
    if plot is not None:
        write_plot(plot, run_charts(results))


@app.command()
@prints(PlanResult)
def plan(
    context: typer.Context,
    trace: TraceArgument,
    nodes: Annotated[
        int, typer.Option(min=2, max=_MAX_NODES, help="All nodes, prefill and decode.")
    ] = 16,
    hardware: Hardware = DEFAULT,
    rate: Rate = 1.0,
    limit: Limit = 1_000_000,
    eviction: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(EVICTION_NAMES)}, or all: a hit curve for each; lru otherwise.",
            autocompletion=lambda: [*EVICTION_NAMES, "all"],
        ),
    ] = None,
    ttft_slo: TtftSlo = 30.0,
    tbt_slo: TbtSlo = 0.1,
    seed: Seed = 0,
    plot: Plot = None,
) -> None:
    """Is a cache worth it, how large, how many nodes of each kind.

    \b
    Example: mcctl simulate plan conversation_trace.jsonl --nodes 12
    Example: mcctl simulate plan requests-2026-11-30.jsonl
    """
    if plot is not None:
        check_plot(plot)
    profile = find_profile(hardware)
    requests = _requests(trace, rate, limit, seed)
    evictions = _chosen(eviction, EVICTION_NAMES, "lru")
    curve = _hit_curves(requests, evictions)
    shares = sorted({max(1, min(nodes - 1, round(nodes * part / 8))) for part in range(1, 8)})
    plans = [DisaggregatedPlan(number, nodes - number, eviction=evictions[0]) for number in shares]
    objectives = Objectives(ttft_slo, tbt_slo)
    results = _simulate_all(requests, plans, profile, objectives)
    best = max(results, key=lambda run: (round(run.goodput, 3), -run.ttft_s.mean))
    memory = _try_memory(requests, plans[results.index(best)], profile, objectives)
    count, span_s = len(requests), max(requests[-1].arrival_s, 1e-9)
    result = PlanResult(
        num_requests=count,
        requests_per_s=count / span_s,
        mean_input_tokens=sum(request.input_tokens for request in requests) / count,
        mean_output_tokens=sum(request.output_tokens for request in requests) / count,
        distinct_tokens=num_distinct_tokens(requests),
        reuse_limit=curve[-1].hit_fraction,
        hit_curve=curve,
        clusters=results,
        best_cluster=best.cluster,
        network_gbit_s=8 * best.network_gb / max(best.makespan_s, 1e-9) / nodes,
        memory=memory,
        best_memory=best_choice(memory).name,
    )
    match settings_of(context).output:
        case "json":
            render.emit_json(result)
        case "plain":
            render.emit("plain", result, RUN_COLUMNS, results)
        case "table":
            show_plan(result, profile, nodes)
    if plot is not None:
        write_plot(plot, plan_charts(curve, result.distinct_tokens, results))


@app.command()
@prints({"rows": list[PolicyRow]})
def compare(
    context: typer.Context,
    trace: Annotated[
        Path | None, typer.Argument(help="A JSONL trace, as it came and twice as fast.")
    ] = None,
    prefill: Prefills = 8,
    decode: Decodes = 8,
    hardware: Hardware = DEFAULT,
    limit: Limit = 1_000_000,
    requests: Annotated[
        int, typer.Option(min=10, max=100_000, help="Of each kind of made-up traffic.")
    ] = _MADE_UP_REQUESTS,
    admission: Annotated[
        str, typer.Option(help=f"Of all policies: {', '.join(ADMISSION_NAMES)}.")
    ] = "objectives",
    ttft_slo: TtftSlo = 30.0,
    tbt_slo: TbtSlo = 0.1,
) -> None:
    """Every policy on the same traffic, beside ours. Exits with 1 where ours does not keep its goals.

    \b
    Example: mcctl simulate compare conversation_trace.jsonl
    """
    if admission not in ADMISSION_NAMES:
        raise typer.BadParameter(f"{admission} is none of {', '.join(ADMISSION_NAMES)}")
    profile, objectives = find_profile(hardware), Objectives(ttft_slo, tbt_slo)
    asked = [] if trace is None else read_trace(trace, limit=limit)
    plan = DisaggregatedPlan(
        prefill, decode, admission=admission, ttft_slo_s=ttft_slo, tbt_slo_s=tbt_slo
    )
    rows: list[PolicyRow] = []
    with render.progress("replaying") as progress:
        for traffic in traffics(asked, requests, prefill, profile):
            rows += compare_policies(
                traffic, lambda policy: replace(plan, policy=policy), profile, objectives, progress
            )
    output = settings_of(context).output
    text = "every policy, with the same admission; on a trace ours has more goodput or the shorter mean TTFT"
    render.emit(output, {"rows": rows}, POLICY_COLUMNS, rows, title=text)
    missed = sum(not row.is_goal_met for row in rows)
    if missed:
        raise McError(f"{missed} of {len(rows)} policies are better somewhere than ours may be")


@app.command()
@prints({"rows": list[figures.Comparison]})
def reproduce(
    context: typer.Context,
    trace: Annotated[Path, typer.Argument(help="Mooncake's published conversation trace.")],
    figure: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(figures.FIGURES)}; may be repeated, all otherwise."),
    ] = None,
) -> None:
    """The papers' figures beside ours. Exits with 1 when a row misses its tolerance.

    \b
    Example: mcctl simulate reproduce conversation_trace.jsonl --figure scheduling
    """
    names = figure or list(figures.FIGURES)
    unknown = [name for name in names if name not in figures.FIGURES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(figures.FIGURES)}")
    requests, profile = read_trace(trace), find_profile(DEFAULT)
    rows: list[figures.Comparison] = []
    with render.progress("replaying") as progress:
        for name in names:
            rows.extend(figures.FIGURES[name](requests, profile, progress))
    output = settings_of(context).output
    render.emit(output, {"rows": rows}, COMPARISON_COLUMNS, rows, title="ours beside the papers'")
    missed = sum(not row.is_met for row in rows)
    if missed:
        raise McError(f"{missed} of {sum(row.is_goal for row in rows)} goals are out of tolerance")


def _requests(trace: str, rate: float, limit: int, seed: int) -> list[TraceRequest]:
    if trace in WORKLOADS:
        count = min(limit, _MADE_UP_REQUESTS)
        return generate(WorkloadPlan(trace, count, rate, seed))
    if not Path(trace).exists():
        raise NotFound(f"trace {trace}: no such file, nor made-up traffic: {', '.join(WORKLOADS)}")
    return at_rate(read_trace(Path(trace), limit=limit), rate)


def _chosen(names: Sequence[str] | None, known: Sequence[str], default: str) -> Sequence[str]:
    wanted = names or [default]
    unknown = [name for name in wanted if name not in (*known, "all")]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(known)}, all")
    return known if "all" in wanted else wanted


def _simulate_all(
    requests: Sequence[TraceRequest],
    plans: Sequence[ClusterPlan],
    profile: HardwareProfile,
    objectives: Objectives,
) -> list[SimulationResult]:
    results = []
    with render.progress("replaying") as progress:
        for number, cluster in enumerate(plans, 1):
            what = f"{name_of(cluster)}, {policy_of(cluster)}"
            progress(f"{number}/{len(plans)}: replaying {len(requests)} requests on {what}")
            results.append(simulate(requests, cluster, profile, objectives))
    return results


def _try_memory(
    requests: Sequence[TraceRequest],
    plan: DisaggregatedPlan,
    profile: HardwareProfile,
    objectives: Objectives,
) -> list[MemoryChoice]:
    """Each way to equip this cluster's prefill nodes, simulated."""
    with render.progress("replaying") as progress:
        progress("how much memory is worth it")
        sizes = sizes_to_try(requests, profile, plan.num_prefills)
    plans = [
        replace(plan, node_tokens=size.dram_tokens, ssd_tokens=size.ssd_tokens) for size in sizes
    ]
    runs = _simulate_all(requests, plans, profile, objectives)
    return [
        MemoryChoice(
            name=size.name,
            dram_tokens=size.dram_tokens,
            ssd_tokens=size.ssd_tokens,
            price=size.price,
            run=run,
        )
        for size, run in zip(sizes, runs, strict=True)
    ]


def _hit_curves(requests: Sequence[TraceRequest], evictions: Sequence[str]) -> list[CapacityPoint]:
    """One after the other, each up to the cache without end."""
    capacities = [millions * 1_000_000 for millions in _CAPACITIES] + [0]
    points = []
    with render.progress("replaying") as progress:
        for name in evictions:
            progress(f"what a cache of each size finds, {name}")
            points += hit_curve(requests, capacities, name)
    return points
