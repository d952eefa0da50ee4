"""mcctl simulate plan: is a cache worth it, how large, how many nodes of each kind."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Final

import typer

from daemons.simulation.capacity import CapacityPoint, hit_curve, num_distinct_tokens
from daemons.simulation.disaggregated import DisaggregatedPlan
from daemons.simulation.hardware import DEFAULT, HardwareProfile, find_profile
from daemons.simulation.max_rate import RatePoint, max_requests_per_s, rate_curve
from daemons.simulation.outcome import Objectives
from daemons.simulation.pool import EVICTION_NAMES
from daemons.simulation.simulate import name_of, simulate
from daemons.simulation.sizing import MemoryChoice, best_choice, sizes_to_try
from daemons.simulation.trace import TraceRequest, at_rate
from mcctl import render
from mcctl.commands.simulate.flags import (
    MAX_NODES,
    Evictions,
    Hardware,
    Limit,
    Plot,
    Rate,
    Seed,
    TbtSlo,
    TraceArgument,
    TtftSlo,
    chosen,
)
from mcctl.commands.simulate.replay import requests_of, simulate_all
from mcctl.output_schema import prints
from mcctl.settings import settings_of
from mcctl.views.plan import PlanResult, show_plan
from mcctl.views.plot_file import check_plot, write_plot
from mcctl.views.simulation import RUN_COLUMNS
from mcctl.views.simulation_plot import plan_charts

Progress = Callable[[str], object]

_NUM_CAPACITIES: Final = 8
_LEAST_SPAN: Final = 4
"""Of a rate, as a multiple of the TTFT objective: a shorter burst would only be queued."""


@prints(PlanResult)
def plan(
    context: typer.Context,
    trace: TraceArgument,
    nodes: Annotated[
        int, typer.Option(min=2, max=MAX_NODES, help="All nodes, prefill and decode.")
    ] = 16,
    hardware: Hardware = DEFAULT,
    rate: Rate = 1.0,
    limit: Limit = 1_000_000,
    eviction: Evictions = None,
    ttft_slo: TtftSlo = 30.0,
    tbt_slo: TbtSlo = 0.1,
    seed: Seed = 0,
    plot: Plot = None,
) -> None:
    """Is a cache worth it, how large, how many nodes of each kind.

    \b
    Example: mcctl simulate plan documents --rate 2 --nodes 6
    Example: mcctl simulate plan requests-2026-11-30.jsonl --hardware mine.toml
    """
    if plot is not None:
        check_plot(plot)
    profile = find_profile(hardware)
    requests = requests_of(trace, rate, limit, seed)
    evictions = chosen(eviction, EVICTION_NAMES, "lru")
    shares = sorted({max(1, min(nodes - 1, round(nodes * part / 8))) for part in range(1, 8)})
    plans = [DisaggregatedPlan(number, nodes - number, eviction=evictions[0]) for number in shares]
    objectives = Objectives(ttft_slo, tbt_slo)
    with render.progress("replaying") as progress:
        curve = _hit_curves(requests, evictions, progress)
        results = simulate_all(requests, plans, profile, objectives, progress)
        best = max(results, key=lambda run: (round(run.goodput, 3), -run.ttft_s.mean))
        best_plan = plans[results.index(best)]
        memory = _try_memory(requests, best_plan, profile, objectives, progress)
        rates = _try_rates(requests, best_plan, profile, objectives, progress)
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
        rates=rates,
        max_requests_per_s=max_requests_per_s(rates),
    )
    match settings_of(context).output:
        case "json":
            render.emit_json(result)
        case "plain":
            render.emit("plain", result, RUN_COLUMNS, results)
        case "table":
            show_plan(result, profile, nodes)
    if plot is not None:
        write_plot(plot, plan_charts(result))


def _try_memory(
    requests: Sequence[TraceRequest],
    plan: DisaggregatedPlan,
    profile: HardwareProfile,
    objectives: Objectives,
    progress: Progress,
) -> list[MemoryChoice]:
    """Each way to equip this cluster's prefill nodes, simulated."""
    progress("how much memory is worth it")
    tried = []
    for size in sizes_to_try(requests, profile, plan.num_prefills):
        progress(f"{name_of(plan)} with {size.name}")
        sized = replace(plan, node_tokens=size.dram_tokens, ssd_tokens=size.ssd_tokens)
        tried.append(
            MemoryChoice(
                name=size.name,
                dram_tokens=size.dram_tokens,
                ssd_tokens=size.ssd_tokens,
                price=size.price,
                run=simulate(requests, sized, profile, objectives),
            )
        )
    return tried


def _try_rates(
    requests: Sequence[TraceRequest],
    plan: DisaggregatedPlan,
    profile: HardwareProfile,
    objectives: Objectives,
    progress: Progress,
) -> list[RatePoint]:
    """What this cluster makes of the same requests at other rates."""

    def goodput_at(factor: float) -> float:
        progress(f"{name_of(plan)} at {factor:g} times the rate")
        return simulate(at_rate(requests, factor), plan, profile, objectives).goodput

    return rate_curve(requests, goodput_at, least_span_s=_LEAST_SPAN * objectives.ttft_s)


def _hit_curves(
    requests: Sequence[TraceRequest], evictions: Sequence[str], progress: Progress
) -> list[CapacityPoint]:
    """One after the other, each up to the cache without end."""
    capacities = [*_capacities(num_distinct_tokens(requests)), 0]
    points = []
    for name in evictions:
        progress(f"what a cache of each size finds, {name}")
        points += hit_curve(requests, capacities, name)
    return points


def _capacities(largest: int) -> list[int]:
    """Round sizes in tokens, the last of them with room for all there is."""
    ladder = [step * 10**power for power in range(3, 16) for step in (1, 2, 5)]
    enough = next(at for at, size in enumerate(ladder) if size >= largest)
    return ladder[max(0, enough - _NUM_CAPACITIES + 1) : enough + 1]
