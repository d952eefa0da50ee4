"""mcctl bench load: a trace or made-up traffic, sent when it is due."""

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from daemons.core.errors import NotFound
from daemons.core.units import format_count
from daemons.simulation.outcome import Objectives
from daemons.simulation.trace import TraceRequest, at_rate, read_trace
from daemons.simulation.workloads import WORKLOADS, WorkloadPlan, generate
from mcctl import model_store, render
from mcctl.bench.load import (
    LOAD_COLUMNS,
    LoadBench,
    LoadPlan,
    LoadResult,
    charts,
    load_rows,
)
from mcctl.bench.peak import find_peak, with_overload
from mcctl.bench.served_model import (
    described_model,
    served_model,
    url_of_local_cluster,
    vocabulary_of,
)
from mcctl.cluster.plan import ClusterOptions
from mcctl.cluster.processes import LocalCluster
from mcctl.durations import duration
from mcctl.openai_stream import OpenAiClient
from mcctl.output_schema import prints
from mcctl.settings import settings_of
from mcctl.views.plot_file import check_plot, write_plot


@prints(LoadResult)
def load(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(help=f"A JSONL trace, or made-up traffic: {', '.join(WORKLOADS)}.")
    ],
    model: Annotated[str, typer.Option(help="A directory or a name.")] = model_store.DEFAULT_MODEL,
    rate: Annotated[
        float,
        typer.Option(
            min=0.001, help="A trace: so many times as fast; made-up traffic: requests a second."
        ),
    ] = 1.0,
    limit: Annotated[int, typer.Option(min=1, help="At most so many requests.")] = 100,
    seed: Annotated[int, typer.Option(help="Of made-up traffic, and of all tokens.")] = 0,
    length_scale: Annotated[
        float, typer.Option(min=0.001, max=10.0, help="Prompts and answers so many times as long.")
    ] = 1.0,
    concurrency: Annotated[
        int, typer.Option(min=1, max=1000, help="At most so many requests under way.")
    ] = 64,
    ttft_slo: Annotated[
        float, duration(least_s=0.001, help="Objective, to the first token.")
    ] = 5.0,
    tbt_slo: Annotated[float, duration(least_s=0.001, help="Objective, between tokens.")] = 0.2,
    request_timeout: Annotated[
        float, duration(least_s=1.0, most_s=3600.0, help="After which an answer has failed.")
    ] = 120.0,
    overload: Annotated[
        float,
        typer.Option(
            min=0,
            max=100,
            help="Then as long again at so many times the load of most goodput; 0: not.",
            metavar="FACTOR",
        ),
    ] = 0.0,
    peak_steps: Annotated[
        int,
        typer.Option(
            min=0, max=20, help="Before it, raise the load while goodput grows; 0: --rate is it."
        ),
    ] = 6,
    plot: Annotated[Path | None, typer.Option(help="Draw the distributions: .svg or .png.")] = None,
    endpoint_http: Annotated[
        str | None, typer.Option(help="Gateway of a running cluster.", metavar="URL")
    ] = None,
    own: Annotated[
        bool, typer.Option("--own", help="Start a cluster for it even where one is up.")
    ] = False,
) -> None:
    """Send a trace when it is due: TTFT, TBT, rejections, goodput.

    Measures the cluster of `mcctl cluster up` if it is up and serves what is asked for, else one of its own.

    \b
    Example: mcctl bench load trace.jsonl --rate 0.5 --ttft-slo 2 --plot load.svg
    Example: mcctl bench load chats --rate 4 --endpoint-http http://10.0.0.5:8000
    \b
    Example: mcctl bench load unrelated --rate 2 --overload 3 --ttft-slo 10
    """
    if plot is not None:
        check_plot(plot)
    settings = settings_of(context)
    requests = _requests(source, rate, limit, seed)
    with render.progress("preparing") as progress, ExitStack() as stack:
        url = endpoint_http or (None if own else url_of_local_cluster(model, None, progress))
        if url is not None:
            served, master = served_model(url, model, settings.api_key), settings.master
        else:
            path = (
                model_store.fetch(model, progress)
                if model in model_store.CATALOG
                else model_store.find_model(model)
            )
            cluster = stack.enter_context(LocalCluster.temporary(ClusterOptions(model=path)))
            url, served, master = cluster.url, path.name, cluster.master
        plan = LoadPlan(
            model=served,
            vocab_size=vocabulary_of(described_model(master, served)),
            requests=requests,
            objectives=Objectives(ttft_slo, tbt_slo),
            length_scale=length_scale,
            concurrency=concurrency,
            request_timeout_s=request_timeout,
            seed=seed,
        )
        client = stack.enter_context(
            OpenAiClient(url, timeout_s=request_timeout, api_key=settings.api_key)
        )

        def run(plan: LoadPlan) -> LoadResult:
            return LoadBench(client, plan, progress).run(Path(source).name)

        result = run(plan)
        if overload:
            denser = _denser(source, rate, plan, run)
            peak = find_peak(result, denser, peak_steps)
            result = with_overload(result, peak, denser(peak.factor * overload), overload)
    if plot is not None:
        write_plot(plot, charts(result))
    render.emit(settings.output, result, LOAD_COLUMNS, load_rows(result))


def _denser(
    source: str, rate: float, plan: LoadPlan, run: Callable[[LoadPlan], LoadResult]
) -> Callable[[float], LoadResult]:
    """The same traffic, so many times as dense; each time of other tokens: nothing of those before is in the pool."""
    number = itertools.count(1)

    def measure(factor: float) -> LoadResult:
        count, seed = max(1, round(len(plan.requests) * factor)), ~(plan.seed + next(number))
        requests = _requests(source, rate * factor, count, seed)
        if len(requests) < count:
            render.note(_too_short(source, len(requests), count))
        return run(replace(plan, requests=requests, seed=seed))

    return measure


def _requests(source: str, rate: float, limit: int, seed: int) -> list[TraceRequest]:
    """`rate` as in `mcctl simulate`."""
    if source in WORKLOADS:
        return generate(WorkloadPlan(source, limit, rate, seed))
    if not Path(source).exists():
        raise NotFound(f"trace {source}: no such file, nor made-up traffic: {', '.join(WORKLOADS)}")
    return at_rate(read_trace(Path(source), limit=limit), rate)


def _too_short(source: str, count: int, wanted: int) -> str:
    return (
        f"trace {source} has {format_count(count, 'request')}, not {wanted}: what is too much lasts "
        f"{count / wanted:.0%} of the time; --limit leaves more of them for it"
    )
