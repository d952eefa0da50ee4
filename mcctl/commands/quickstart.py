"""mcctl quickstart: a cluster of its own, real chat traffic, and a table of what the cache did."""

import time
from pathlib import Path
from textwrap import shorten
from typing import Annotated

import msgspec
import typer

from daemons.client.cluster import ClusterClient
from daemons.core.units import format_duration, format_size
from mcctl import exit_codes, model_store, render
from mcctl.cluster.plan import ClusterOptions, shared_bytes
from mcctl.cluster.process_memory import private_bytes
from mcctl.cluster.processes import LocalCluster
from mcctl.commands import check_engine_dtype, new_app
from mcctl.openai_stream import OpenAiClient
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.traffic import Row, Totals, run_traffic, total

app = new_app()

_QUESTION_CHARS = 44
_ANSWER_CHARS = 100


class QuickstartResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `--output json` prints; fields are only ever added."""

    answers_equal: bool
    reused_tokens: int
    prompt_tokens: int
    ttft_cold_s: float
    ttft_reused_s: float
    bytes_moved: int
    blocks_stored: int
    pool_bytes: int
    memory_bytes: int
    """Of all daemons at the end: private memory, and the KV arenas and segments, which are taken whole at start."""
    start_s: float
    total_s: float
    model: str
    dtype: str
    requests: list[Row]
    pids: dict[str, int]


@app.command()
@prints(QuickstartResult)
def quickstart(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A directory or a name.")] = model_store.DEFAULT_MODEL,
    prefill: Annotated[int, typer.Option(min=1, help="Prefill instances.")] = 1,
    decode: Annotated[int, typer.Option(min=1, help="Decode instances.")] = 1,
    cachenodes: Annotated[int, typer.Option(min=1, help="Cache nodes.")] = 1,
    dtype: Annotated[
        str,
        typer.Option(
            help="bfloat16, float32, or auto: what is fast here.", callback=check_engine_dtype
        ),
    ] = "auto",
) -> int:
    """Fetch the small model, start a cluster, ask it things, compare with the cache switched off.

    Exits with 1 when an answer with the cache differs from the one without it.

    \b
    Example: mcctl quickstart --output json
    """
    started_s = time.monotonic()
    with render.progress("preparing") as progress:
        path = _model(model, progress)
        options = ClusterOptions(
            model=path,
            num_prefill=prefill,
            num_decode=decode,
            num_cachenodes=cachenodes,
            dtype=dtype,
            segment="256MiB",
            kv_memory="256MiB",
        )
        cluster = LocalCluster.temporary(options)
        try:
            cluster.start(progress)
            start_s = time.monotonic() - started_s
            with OpenAiClient(cluster.url) as client:
                rows = list(run_traffic(client, path.name, progress))
            result = _result(cluster, rows, start_s)
            progress("stopping the cluster")
        finally:
            cluster.stop()
    result = msgspec.structs.replace(result, total_s=time.monotonic() - started_s)
    output = settings_of(context).output
    show(result, on_stderr=output != "table")
    if output != "table":
        render.emit(output, result, COLUMNS, result.requests)
    return exit_codes.OK if result.answers_equal else exit_codes.BUG


def _model(name: str, progress: model_store.Progress) -> Path:
    if name in model_store.CATALOG:
        return model_store.fetch(name, progress)
    return model_store.find_model(name)


def _result(cluster: LocalCluster, rows: list[Row], start_s: float) -> QuickstartResult:
    totals: Totals = total(rows)
    with ClusterClient(cluster.master) as client:
        stat, [model] = client.cache_stat(), client.models()
    return QuickstartResult(
        answers_equal=totals.answers_equal,
        reused_tokens=totals.reused_tokens,
        prompt_tokens=totals.prompt_tokens,
        ttft_cold_s=totals.ttft_cold_s,
        ttft_reused_s=totals.ttft_reused_s,
        bytes_moved=totals.bytes_moved,
        blocks_stored=stat.num_stored,
        pool_bytes=stat.used_bytes,
        memory_bytes=private_bytes(cluster.pids.values()) + shared_bytes(cluster.options),
        start_s=start_s,
        total_s=0.0,
        model=Path(cluster.record.model).name,
        dtype=model.dtype,
        requests=rows,
        pids=cluster.pids,
    )


COLUMNS = [
    Column("request", lambda row: f"{row.scenario}: {_short(row.question)}", is_prose=True),
    Column("prompt", lambda row: f"{row.prompt_tokens}", is_number=True),
    Column("reused", lambda row: f"{row.reused_tokens}", is_number=True),
    Column("TTFT", lambda row: format_duration(row.ttft_s), is_number=True),
    Column("no cache", lambda row: format_duration(row.ttft_bypass_s), is_number=True),
    Column(
        "TBT",
        lambda row: "-" if row.tbt_s is None else format_duration(row.tbt_s),
        is_number=True,
        extra=1,
    ),
    Column("ran on", lambda row: f"{row.prefill} > {row.decode}", extra=2),
    Column("same answer", lambda row: "yes" if row.is_equal else "NO"),
]


def show(result: QuickstartResult, *, on_stderr: bool) -> None:
    """The table, and what it comes to."""
    title = f"{result.model} ({result.dtype}), {len(result.pids)} processes"
    render.show_table(title, COLUMNS, result.requests, on_stderr=on_stderr)
    speedup = result.ttft_cold_s / max(result.ttft_reused_s, 1e-9)
    facts = [
        (
            "TTFT",
            f"{format_duration(result.ttft_cold_s)} without reuse, {format_duration(result.ttft_reused_s)} with it: "
            f"{speedup:.1f}x faster",
        ),
        ("tokens", f"{result.reused_tokens} of {result.prompt_tokens} prompt tokens reused"),
        ("moved", f"{format_size(result.bytes_moved)} of KV between processes"),
        ("pool", f"{result.blocks_stored} blocks stored, {format_size(result.pool_bytes)}"),
        (
            "memory",
            f"{format_size(result.memory_bytes)} of all daemons, KV arenas and segments included",
        ),
        (
            "time",
            f"{format_duration(result.total_s)}, {format_duration(result.start_s)} of it until the cluster was ready",
        ),
        (
            "answers",
            "with the cache equal those without it"
            if result.answers_equal
            else "DIFFER with and without the cache",
        ),
        (
            "example",
            f'to the second: "{shorten(result.requests[1].answer, _ANSWER_CHARS, placeholder="...")}"',
        ),
    ]
    render.show_facts(facts, on_stderr=on_stderr)


def _short(question: str) -> str:
    return question if len(question) <= _QUESTION_CHARS else question[: _QUESTION_CHARS - 3] + "..."
