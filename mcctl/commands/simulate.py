"""mcctl simulate: replay a trace, or made-up traffic, against a cluster that need not exist."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from daemons.core.errors import McError, NotFound
from daemons.core.units import format_duration
from daemons.simulation import reproduce as figures
from daemons.simulation.capacity import CapacityPoint, hit_curve, num_distinct_tokens
from daemons.simulation.coupled import CoupledPlan
from daemons.simulation.disaggregated import POLICY_NAMES, DisaggregatedPlan
from daemons.simulation.hardware import DEFAULT, HardwareProfile, find_profile
from daemons.simulation.outcome import Objectives, SimulationResult
from daemons.simulation.pool import EVICTION_NAMES
from daemons.simulation.simulate import ClusterPlan, name_of, policy_of, simulate
from daemons.simulation.trace import TraceRequest, at_rate, read_trace
from daemons.simulation.workloads import WORKLOADS, WorkloadPlan, generate
from mcctl import render
from mcctl.commands import new_app
from mcctl.plot_file import check_plot, write_plot
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.simulation_plot import plan_charts, run_charts

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
Plot = Annotated[Path | None, typer.Option(help="Also draw it: .svg, or .png.", metavar="FILE")]
TtftSlo = Annotated[float, typer.Option(min=0.001, help="Seconds to the first token.")]
TbtSlo = Annotated[float, typer.Option(min=0.0001, help="Seconds between tokens.")]


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `simulate plan --output json` prints; fields are only ever added."""

    num_requests: int
    requests_per_s: float
    mean_input_tokens: float
    mean_output_tokens: float
    distinct_tokens: int
    reuse_limit: float
    hit_curve: list[CapacityPoint]
    clusters: list[SimulationResult]


@app.callback()
def _noun() -> None:
    """Replay traffic against a modelled cluster; the Conductor and the directory are the live ones."""


@app.command()
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
    dram_tokens: DramTokens = 0,
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
    early_rejection: Annotated[
        bool,
        typer.Option(
            "--early-rejection", help="Reject whoever is predicted to miss the TTFT objective."
        ),
    ] = False,
    ttft_slo: TtftSlo = 30.0,
    tbt_slo: TbtSlo = 0.1,
    seed: Seed = 0,
    plot: Plot = None,
) -> None:
    """Times, reuse and goodput of policies on the same traffic.

    \b
    Example: mcctl simulate run conversation_trace.jsonl --policy all --coupled
    Example: mcctl simulate run agents --rate 5 --prefill 4 --decode 2
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
            ttft_slo_s=ttft_slo if early_rejection else 0.0,
            seed=seed,
            node_tokens=dram_tokens,
            eviction=which,
        )
        for name in _chosen(policy, POLICY_NAMES, "time")
        for which in _chosen(eviction, EVICTION_NAMES, "lru")
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
    render.emit(output, {"runs": results}, _RUN_COLUMNS, results, title=_title(trace, requests))
    if plot is not None:
        write_plot(plot, run_charts(results))


@app.command()
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
    """
    if plot is not None:
        check_plot(plot)
    profile = find_profile(hardware)
    requests = _requests(trace, rate, limit, seed)
    evictions = _chosen(eviction, EVICTION_NAMES, "lru")
    curve = _hit_curves(requests, evictions)
    shares = sorted({max(1, min(nodes - 1, round(nodes * part / 8))) for part in range(1, 8)})
    plans = [DisaggregatedPlan(number, nodes - number, eviction=evictions[0]) for number in shares]
    results = _simulate_all(requests, plans, profile, Objectives(ttft_slo, tbt_slo))
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
    )
    match settings_of(context).output:
        case "json":
            render.emit_json(result)
        case "plain":
            render.emit("plain", result, _RUN_COLUMNS, results)
        case "table":
            _show_plan(result, profile, nodes)
    if plot is not None:
        write_plot(plot, plan_charts(curve, result.distinct_tokens, results))


@app.command()
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
    render.emit(output, {"rows": rows}, _COMPARISON_COLUMNS, rows, title="ours beside the papers'")
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


def _hit_curves(requests: Sequence[TraceRequest], evictions: Sequence[str]) -> list[CapacityPoint]:
    """One after the other, each up to the cache without end."""
    capacities = [millions * 1_000_000 for millions in _CAPACITIES] + [0]
    points = []
    with render.progress("replaying") as progress:
        for name in evictions:
            progress(f"what a cache of each size finds, {name}")
            points += hit_curve(requests, capacities, name)
    return points


def _title(trace: str, requests: Sequence[TraceRequest]) -> str:
    span_s = max(requests[-1].arrival_s, 1e-9)
    return (
        f"{Path(trace).name}: {len(requests)} requests in {format_duration(span_s)}, "
        f"{len(requests) / span_s:.2f} a second"
    )


def _show_plan(result: PlanResult, profile: HardwareProfile, nodes: int) -> None:
    token_gb = profile.kv.bytes_per_token / 1e9
    render.show_facts(
        [
            ("requests", f"{result.num_requests}, {result.requests_per_s:.2f} a second"),
            ("prompt", f"{result.mean_input_tokens:,.0f} tokens on average"),
            ("answer", f"{result.mean_output_tokens:,.0f} tokens on average"),
            (
                "reusable",
                f"{result.reuse_limit:.1%} of all prompt tokens, with a cache without end",
            ),
            ("all of it", f"{_bytes(result.distinct_tokens * token_gb)} of KV"),
        ]
    )
    columns = [
        Column("capacity", lambda point: _capacity(point), is_number=True),
        Column("KV", lambda point: _bytes(point.capacity_tokens * token_gb), is_number=True),
        Column("eviction", lambda point: point.eviction, extra=1),
        Column("hits", lambda point: f"{point.hit_fraction:.1%}", is_number=True),
        Column("", lambda point: _bar(point.hit_fraction / max(result.reuse_limit, 1e-9))),
    ]
    render.show_table("one cache of this size would find", columns, result.hit_curve)
    render.show_table(f"{nodes} nodes", _RUN_COLUMNS, result.clusters)
    best = max(result.clusters, key=lambda run: (round(run.goodput, 3), -run.ttft_s.mean))
    render.note(
        f"best here: {best.cluster}, {best.goodput:.1%} of requests within both objectives; "
        f"of those alike the one with the shortest mean TTFT, {format_duration(best.ttft_s.mean)}"
    )


def _capacity(point: CapacityPoint) -> str:
    return f"{point.capacity_tokens / 1e6:g} M tokens" if point.capacity_tokens else "no end"


def _bytes(gigabytes: float) -> str:
    if gigabytes < 100:
        return f"{gigabytes:.1f} GB" if gigabytes else ""
    return f"{gigabytes / 1000:,.1f} TB"


def _bar(fraction: float) -> str:
    return "█" * round(30 * min(1.0, fraction))


def _percent(value: Callable[[Any], float]) -> Callable[[Any], str]:
    return lambda row: f"{value(row):.1%}"


def _seconds(value: Callable[[Any], float]) -> Callable[[Any], str]:
    """Of the requests that were served; where none was, there is no time."""
    return lambda run: format_duration(value(run)) if run.num_rejected < run.num_requests else "-"


_RUN_COLUMNS: Final = [
    Column("cluster", lambda run: run.cluster),
    Column("policy", lambda run: run.policy),
    Column("goodput", _percent(lambda run: run.goodput), is_number=True),
    Column("rejected", lambda run: str(run.num_rejected), is_number=True, extra=2),
    Column("TTFT mean", _seconds(lambda run: run.ttft_s.mean), is_number=True),
    Column("p50", _seconds(lambda run: run.ttft_s.p50), is_number=True, extra=1),
    Column("p90", _seconds(lambda run: run.ttft_s.p90), is_number=True),
    Column("p99", _seconds(lambda run: run.ttft_s.p99), is_number=True, extra=3),
    Column("TBT mean", _seconds(lambda run: run.tbt_s.mean), is_number=True),
    Column("TBT p90", _seconds(lambda run: run.tbt_s.p90), is_number=True),
    Column("reused", _percent(lambda run: run.reused_fraction), is_number=True),
    Column("pulled", _percent(lambda run: run.remote_fraction), is_number=True, extra=4),
    Column(
        "prefill a request",
        _seconds(lambda run: run.prefill_s_per_request),
        is_number=True,
        extra=5,
    ),
    Column("error", _percent(lambda run: run.prediction_error), is_number=True, extra=6),
    Column("eviction", lambda run: run.eviction or "-", extra=7),
]

_COMPARISON_COLUMNS: Final = [
    Column("figure", lambda row: row.figure),
    Column("what", lambda row: row.what),
    Column("ours", lambda row: f"{row.ours:.3f}", is_number=True),
    Column(
        "published",
        lambda row: "" if row.published is None else f"{row.published:.3f}",
        is_number=True,
    ),
    Column("tolerance", lambda row: _tolerance(row), is_number=True),
    Column("", lambda row: _verdict(row)),
    Column("note", lambda row: row.note, is_prose=True, extra=1),
]


def _tolerance(row: figures.Comparison) -> str:
    if row.tolerance is None:
        return ""
    return f"{row.tolerance:.0%}" if row.is_relative else f"{row.tolerance:.3f}"


def _verdict(row: figures.Comparison) -> str:
    if not row.is_goal:
        return ""
    return "within" if row.is_met else "OUT"
