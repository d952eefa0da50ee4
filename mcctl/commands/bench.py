"""mcctl bench: measure a cluster or a data path, beside a limit measured in the same run."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from daemons.core.errors import ConfigError
from daemons.core.units import parse_size
from daemons.simulation.disaggregated import POLICY_NAMES
from daemons.simulation.hardware import DEFAULT, find_profile
from daemons.simulation.outcome import Objectives
from daemons.simulation.trace import TraceRequest, at_rate, read_trace
from daemons.simulation.workloads import WORKLOADS, WorkloadPlan, generate
from daemons.transfer.transports.rdma import why_unavailable
from mcctl import (
    conductor_bench,
    master_bench,
    model_store,
    render,
    ssd_bench,
    store_bench,
    transfer_bench,
)
from mcctl.bench_tables import (
    BESIDE_COLUMNS,
    CONDUCTOR_COLUMNS,
    SERVE_COLUMNS,
    SSD_COLUMNS,
    STORE_BESIDE_COLUMNS,
    STORE_COLUMNS,
    TRANSFER_COLUMNS,
    WRITER_COLUMNS,
    show_served,
)
from mcctl.cluster_plan import ClusterOptions
from mcctl.commands import check_dtype, check_size, new_app
from mcctl.conductor_bench import ConductorResult
from mcctl.load_bench import LOAD_COLUMNS, LoadBench, LoadPlan, LoadResult, charts, load_rows
from mcctl.local_cluster import LocalCluster
from mcctl.openai_stream import OpenAiClient
from mcctl.oracle import Oracle
from mcctl.output_schema import prints
from mcctl.plot_file import check_plot, write_plot
from mcctl.published_store import published_master
from mcctl.serve_bench import (
    DECODE_CONTEXT,
    QUICK_PREFIXES,
    QUICK_SUFFIXES,
    ServeBench,
    ServePlan,
    ServeResult,
)
from mcctl.served_model import described_model, served_model, url_of_local_cluster, vocabulary_of
from mcctl.settings import settings_of
from mcctl.store_pool import StorePool

app = new_app()


@app.callback()
def _noun() -> None:
    """Measure a cluster, or a data path."""


@app.command()
@prints(ServeResult)
def serve(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A directory or a name.")] = model_store.DEFAULT_MODEL,
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16 (default) or float32; of a cluster of its own.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Each figure is the median of so many.")] = 3,
    prefix: Annotated[
        list[int] | None, typer.Option(min=1, help="Shared tokens; may be repeated.")
    ] = None,
    suffix: Annotated[
        list[int] | None, typer.Option(min=1, help="New tokens; may be repeated.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two lengths, once: half a minute, not many.")
    ] = False,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Also measure plain transformers on this host.")
    ] = False,
    endpoint_http: Annotated[
        str | None,
        typer.Option(help="Gateway of a running cluster.", metavar="URL"),
    ] = None,
    own: Annotated[
        bool, typer.Option("--own", help="Start a cluster for it even where one is up.")
    ] = False,
) -> None:
    """Cold and reused TTFT, and prefill and decode rates. Also what of TTFT is not model compute.

    Measures the cluster of `mcctl cluster up` if it is up and serves what is asked for, else one of its own.

    \b
    Example: mcctl bench serve --oracle --output json
    Example: mcctl bench serve --prefix 2048 --suffix 64 --endpoint-http http://127.0.0.1:8000
    """
    if dtype is not None:
        check_dtype(dtype)
    output = settings_of(context).output
    shape = _shape(quick, repeats, prefix, suffix)
    with render.progress("preparing") as progress:
        url = endpoint_http or (None if own else url_of_local_cluster(model, dtype, progress))
        if url is not None:
            served = served_model(url, model)
            described = described_model(settings_of(context).master, served)
            plan = ServePlan(model=served, vocab_size=vocabulary_of(described), **shape)
            as_served = described.dtype if described is not None else "as served"
            result = _measure(url, plan, as_served, progress, model if oracle else None)
        else:
            dtype = dtype or "bfloat16"
            path = (
                model_store.fetch(model, progress)
                if model in model_store.CATALOG
                else model_store.find_model(model)
            )
            with LocalCluster.temporary(ClusterOptions(model=path, dtype=dtype)) as cluster:
                vocab_size = vocabulary_of(described_model(cluster.master, path.name))
                plan = ServePlan(model=path.name, vocab_size=vocab_size, **shape)
                result = _measure(cluster.url, plan, dtype, progress, model if oracle else None)
    show_served(result, on_stderr=output != "table")
    if output != "table":
        render.emit(output, result, SERVE_COLUMNS, result.rows)


@app.command()
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
        float, typer.Option(min=0.001, help="Objective in seconds, to the first token.")
    ] = 5.0,
    tbt_slo: Annotated[
        float, typer.Option(min=0.001, help="Objective in seconds, between tokens.")
    ] = 0.2,
    request_timeout: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Seconds after which an answer has failed.")
    ] = 120.0,
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
    Example: mcctl bench load trace.jsonl --rate 0.5 --length-scale 0.1 --ttft-slo 2 --plot load.svg
    Example: mcctl bench load chats --rate 4 --limit 200 --endpoint-http http://10.0.0.5:8000
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
        result = LoadBench(client, plan, progress).run(Path(source).name)
    if plot is not None:
        write_plot(plot, charts(result))
    render.emit(settings.output, result, LOAD_COLUMNS, load_rows(result))


@app.command()
@prints(transfer_bench.TransferResult)
def transfer(
    context: typer.Context,
    sizes: Annotated[
        str, typer.Option(help="Sizes of a block, by commas.", metavar="SIZE,...")
    ] = ",".join(transfer_bench.SIZES),
    batch: Annotated[int, typer.Option(min=1, help="Blocks in one batch; fewer where large.")] = 1,
    threads: Annotated[int, typer.Option(min=1, max=8, help="Batches at the same time.")] = 1,
    transport: Annotated[str, typer.Option(help="shm, tcp, rdma or all.")] = "all",
    beside: Annotated[
        Path | None,
        typer.Option(help="A Python that has the published engine: measure that, too, over tcp."),
    ] = None,
) -> None:
    """The Transfer Engine beside memcpy, plain sockets or perftest. With a peer process.

    \b
    Example: mcctl bench transfer --sizes 4KiB,1MiB --transport shm
    Example: mcctl bench transfer --batch 32 --threads 2 --output json
    Example: mcctl bench transfer --transport tcp --beside ~/published/bin/python
    """
    transports = _transports(transport)
    parsed = [parse_size(check_size(size)) for size in sizes.split(",")]
    if not all(0 < size <= transfer_bench.MAX_SIZE_BYTES for size in parsed):
        raise typer.BadParameter("a size is between 1 byte and 1 GiB")
    if beside is not None and (threads > 1 or "tcp" not in transports):
        raise typer.BadParameter("--beside goes with tcp and one thread")
    plan = transfer_bench.TransferPlan(parsed, batch, threads, transports, beside)
    output = settings_of(context).output
    with render.progress("starting a peer process") as progress:
        result = transfer_bench.run(plan, progress)
    render.show_table("transfer", TRANSFER_COLUMNS, result.rows, on_stderr=output != "table")
    if result.beside:
        is_shown = output == "table"
        render.show_table("beside it", BESIDE_COLUMNS, result.beside, on_stderr=not is_shown)
    if output != "table":
        render.emit(output, result, TRANSFER_COLUMNS, result.rows)


@app.command()
@prints(ConductorResult)
def conductor(
    context: typer.Context,
    instances: Annotated[
        list[int] | None,
        typer.Option(min=2, max=4096, help="Prefill and decode nodes; may be repeated."),
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, max=4096, help="Blocks of each prompt.")] = 250,
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(POLICY_NAMES)}; may be repeated; time otherwise."),
    ] = None,
    decisions: Annotated[
        int, typer.Option(min=10, max=1_000_000, help="So many are timed in each row.")
    ] = 1000,
) -> None:
    """How long the Conductor takes for one request. Beside the bare match of the prompt in the directory.

    With the master's own code, without its messages; 250 blocks of 512 tokens are a prompt of 128k.

    \b
    Example: mcctl bench conductor
    Example: mcctl bench conductor --instances 64 --blocks 2000 --policy time --policy kvcache-centric
    """
    unknown = [name for name in policy or () if name not in POLICY_NAMES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(POLICY_NAMES)}")
    plan = conductor_bench.ConductorPlan(
        instances or _CONDUCTOR_INSTANCES, policy or ["time"], blocks, decisions
    )
    with render.progress("building a cluster") as progress:
        result = conductor_bench.run(plan, find_profile(DEFAULT), progress)
    render.emit(settings_of(context).output, result, CONDUCTOR_COLUMNS, result.rows)


@app.command()
@prints(master_bench.MasterResult)
def master(
    context: typer.Context,
    blocks: Annotated[
        int, typer.Option(min=10_000, max=10_000_000, help="Blocks on the node that is measured.")
    ] = 1_000_000,
    rounds: Annotated[
        int, typer.Option(min=1, max=100, help="How often all of them are replaced.")
    ] = 5,
) -> None:
    """What the master takes for a block. Reports, look-ups, eviction, memory, and look-ups while a node dies.

    Starts a master for it, and plays cache nodes over the wire. Rates are per second of the master's CPU time.

    \b
    Example: mcctl bench master
    Example: mcctl bench master --blocks 100000 --rounds 2 --output json
    """
    output = settings_of(context).output
    with render.progress("starting a master") as progress, StorePool(0, "64MiB") as pool:
        plan = master_bench.MasterPlan(blocks, rounds)
        result = master_bench.run(pool.master, pool.master_pid, plan, progress)
    render.emit(output, result, master_bench.COLUMNS, result.rows)


@app.command()
@prints(store_bench.StoreResult)
def store(
    context: typer.Context,
    writers: Annotated[
        str, typer.Option(help="Numbers of writer processes, with commas; 0 for none.")
    ] = "1,2,4",
    rounds: Annotated[int, typer.Option(min=1, help="Each figure is the median of so many.")] = 15,
    seconds: Annotated[float, typer.Option(min=0.1, help="So long each number writes.")] = 2.0,
    running: Annotated[
        bool, typer.Option("--running", help="The cluster of --endpoint, not one of its own.")
    ] = False,
    beside: Annotated[
        Path | None,
        typer.Option(
            metavar="PYTHON",
            help="A Python with the published store's wheel, which is measured in turns.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Named objects: 4 KiB, batches, look-ups, writers side by side. Each beside a limit of the same run.

    Starts a master and two cache nodes for it; with --running it measures a cluster that is there.
    With --beside it also runs the published Mooncake Store on this machine, by bin/python of an environment with its
    wheel, mooncake-transfer-engine-non-cuda.

    \b
    Example: mcctl bench store
    Example: mcctl bench store --running --endpoint tcp://10.0.0.1:7700 --writers 1,8
    Example: mcctl bench store --writers 0 --beside ~/published/bin/python
    """
    settings = settings_of(context)
    if beside is not None:
        published_master(beside)
    plan = store_bench.StorePlan(rounds, _numbers(writers), seconds, beside)
    with render.progress("starting cache nodes") as progress, ExitStack() as stack:
        master = settings.master
        if not running:
            master = stack.enter_context(StorePool(2, "512MiB")).master
        result = store_bench.run(master, plan, progress)
    is_json = settings.output == "json"
    render.show_table("store", STORE_COLUMNS, result.rows, on_stderr=is_json)
    if result.writers:
        render.show_table("writers of 1 MiB", WRITER_COLUMNS, result.writers, on_stderr=is_json)
    if result.beside:
        render.show_table(
            "beside the published store", STORE_BESIDE_COLUMNS, result.beside, on_stderr=is_json
        )
    if is_json:
        render.emit_json(result)


@app.command()
@prints(ssd_bench.SsdResult)
def ssd(
    context: typer.Context,
    directory: Annotated[
        Path,
        typer.Argument(help="On the disk to measure; must exist.", exists=True, file_okay=False),
    ],
    sizes: Annotated[
        str, typer.Option(help="Sizes of a block, by commas.", metavar="SIZE,...")
    ] = "64KiB,1MiB,16MiB",
    threads: Annotated[int, typer.Option(min=1, max=64, help="Reads at the same time.")] = 1,
    total: Annotated[
        str, typer.Option(help="Of each size so much is written and read.", metavar="SIZE")
    ] = "128MiB",
    blocks: Annotated[
        int, typer.Option(min=1000, max=1_000_000, help="So many are found again at a start.")
    ] = 20_000,
) -> None:
    """An SSD tier on this host's disk. Verified reads, and how fast a start finds blocks again.

    Beside reads stands a plain loop of preadv over the same sizes, beside the start one that reads a page a block.

    \b
    Example: mcctl bench ssd /var/lib/mooncake
    Example: mcctl bench ssd /mnt/nvme --sizes 1MiB --threads 4 --output json
    """
    parsed = [parse_size(check_size(size)) for size in sizes.split(",")]
    if not all(ssd_bench.MIN_SIZE_BYTES <= size <= ssd_bench.MAX_SIZE_BYTES for size in parsed):
        raise typer.BadParameter("a size is between 4 KiB and 256 MiB")
    plan = ssd_bench.SsdPlan(
        directory.resolve(), parsed, threads, parse_size(check_size(total)), blocks
    )
    settings = settings_of(context)
    with render.progress("writing and reading"):
        result = ssd_bench.run(plan)
    if not result.is_direct:
        render.complain(f"{directory} takes no O_DIRECT: the page cache is measured, not the disk")
    render.emit(settings.output, result, SSD_COLUMNS, result.rows)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write numbers with commas, like 1,2,4") from None
    if not all(0 <= number <= 64 for number in numbers):
        raise typer.BadParameter(f"{text!r}: a number of writers is between 0 and 64")
    return [number for number in numbers if number]


def _transports(name: str) -> tuple[transfer_bench.TransportName, ...]:
    match name:
        case "shm" | "tcp":
            return (name,)
        case "rdma" | "all":
            why = why_unavailable()
            if why and name == "rdma":
                raise ConfigError(f"rdma cannot be measured here: {why}")
            if why:
                render.complain(f"rdma is not measured: {why}")
                return ("shm", "tcp")
            return ("rdma",) if name == "rdma" else ("shm", "tcp", "rdma")
    raise typer.BadParameter(f"{name} is none of shm, tcp, rdma, all")


def _requests(source: str, rate: float, limit: int, seed: int) -> list[TraceRequest]:
    """`rate` as in `mcctl simulate`."""
    if source in WORKLOADS:
        return generate(WorkloadPlan(source, limit, rate, seed))
    return at_rate(read_trace(Path(source), limit=limit), rate)


class _Shape(TypedDict, total=False):
    repeats: int
    prefixes: tuple[int, ...]
    suffixes: tuple[int, ...]


def _shape(quick: bool, repeats: int, prefix: list[int] | None, suffix: list[int] | None) -> _Shape:
    shape: _Shape = {"repeats": 1 if quick else repeats}
    if prefix or quick:
        shape["prefixes"] = tuple(prefix or QUICK_PREFIXES)
    if suffix or quick:
        shape["suffixes"] = tuple(suffix or QUICK_SUFFIXES)
    return shape


def _measure(
    url: str,
    plan: ServePlan,
    dtype: str,
    progress: model_store.Progress,
    oracle_model: str | None,
) -> ServeResult:
    with OpenAiClient(url) as client, ExitStack() as stack:
        oracle = None
        if oracle_model is not None:
            progress("starting plain transformers")
            known = dtype if dtype in ("bfloat16", "float32") else "bfloat16"
            path = model_store.find_model(oracle_model)
            oracle = stack.enter_context(Oracle(path, known, DECODE_CONTEXT))
        return ServeBench(client, plan, progress, oracle).run(dtype)


_CONDUCTOR_INSTANCES = (16, 128, 1000)
