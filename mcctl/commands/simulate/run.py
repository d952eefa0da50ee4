"""mcctl simulate run: times, reuse and goodput of policies on the same traffic."""

from typing import Annotated

import typer

from daemons.simulation.coupled import CoupledPlan
from daemons.simulation.disaggregated import ADMISSION_NAMES, POLICY_NAMES, DisaggregatedPlan
from daemons.simulation.hardware import DEFAULT, find_profile
from daemons.simulation.outcome import Objectives, SimulationResult
from daemons.simulation.pool import EVICTION_NAMES
from daemons.simulation.simulate import ClusterPlan
from mcctl import render
from mcctl.commands.simulate.flags import (
    Decodes,
    DeviceTokens,
    DramTokens,
    Evictions,
    Hardware,
    Limit,
    ObjectTokens,
    Plot,
    Prefills,
    Rate,
    Seed,
    SsdTokens,
    TbtSlo,
    TraceArgument,
    TtftSlo,
    chosen,
)
from mcctl.commands.simulate.replay import requests_of, simulate_all
from mcctl.output_schema import prints
from mcctl.settings import settings_of
from mcctl.views.plot_file import check_plot, write_plot
from mcctl.views.simulation import RUN_COLUMNS, show_tiers, title
from mcctl.views.simulation_plot import run_charts


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
    eviction: Evictions = None,
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
    Example: mcctl simulate run agents --rate 5 --prefill 4 --decode 2
    Example: mcctl simulate run conversation_trace.jsonl --policy all --coupled
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
        for name in chosen(policy, POLICY_NAMES, "time")
        for which in chosen(eviction, EVICTION_NAMES, "lru")
        for mode in chosen(admission, ADMISSION_NAMES, "none")
    ]
    if coupled:
        plans += [
            CoupledPlan(prefill + decode, sharing, has_prefix_cache)
            for sharing in ("stalling", "chunked")
            for has_prefix_cache in (False, True)
        ]
    requests = requests_of(trace, rate, limit, seed)
    with render.progress("replaying") as progress:
        results = simulate_all(requests, plans, profile, Objectives(ttft_slo, tbt_slo), progress)
    output = settings_of(context).output
    render.emit(output, {"runs": results}, RUN_COLUMNS, results, title=title(trace, requests))
    if output == "table" and any(len(result.tiers) > 1 for result in results):
        show_tiers(results)
    if plot is not None:
        write_plot(plot, run_charts(results))
