"""mcctl bench serve: one request at a time, cold and with its prefix in the pool."""

from contextlib import ExitStack
from typing import Annotated, TypedDict

import typer

from daemons.protocol.node import ModelDescription
from mcctl import model_store, render
from mcctl.bench.oracle import Oracle
from mcctl.bench.serve import DECODE_CONTEXT, QUICK_PREFIXES, QUICK_SUFFIXES, ServeBench, ServePlan
from mcctl.bench.serve_result import ServeResult
from mcctl.bench.served_model import (
    described_model,
    kv_sizes,
    served_model,
    url_of_local_cluster,
    vocabulary_of,
)
from mcctl.bench.tables import SERVE_COLUMNS, show_served
from mcctl.cluster.plan import ClusterOptions
from mcctl.cluster.processes import LocalCluster
from mcctl.commands import check_engine_dtype
from mcctl.openai_stream import OpenAiClient
from mcctl.output_schema import prints
from mcctl.settings import settings_of


@prints(ServeResult)
def serve(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A directory or a name.")] = model_store.DEFAULT_MODEL,
    dtype: Annotated[
        str | None,
        typer.Option(help="bfloat16, float32, or auto (default); of a cluster of its own."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Each figure is the median of so many.")] = 3,
    prefix: Annotated[
        list[int] | None, typer.Option(min=1, help="Shared tokens; may be repeated.")
    ] = None,
    suffix: Annotated[
        list[int] | None, typer.Option(min=1, help="New tokens; may be repeated.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two lengths, once: a minute, not many.")
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
    Example: mcctl bench serve --prefix 2048 --endpoint-http http://10.0.0.5:8000
    """
    if dtype is not None:
        check_engine_dtype(dtype)
    output = settings_of(context).output
    shape = _shape(quick, repeats, prefix, suffix)
    with render.progress("preparing") as progress:
        url = endpoint_http or (None if own else url_of_local_cluster(model, dtype, progress))
        if url is not None:
            served = served_model(url, model)
            described = described_model(settings_of(context).master, served)
            plan = _plan(served, settings_of(context).master, described, shape)
            result = _measure(url, plan, _dtype_of(described), progress, model if oracle else None)
        else:
            path = (
                model_store.fetch(model, progress)
                if model in model_store.CATALOG
                else model_store.find_model(model)
            )
            with LocalCluster.temporary(
                ClusterOptions(model=path, dtype=dtype or "auto")
            ) as cluster:
                described = described_model(cluster.master, path.name)
                plan = _plan(path.name, cluster.master, described, shape)
                result = _measure(
                    cluster.url, plan, _dtype_of(described), progress, model if oracle else None
                )
    show_served(result, on_stderr=output != "table")
    if output != "table":
        render.emit(output, result, SERVE_COLUMNS, result.rows)


class _Shape(TypedDict, total=False):
    repeats: int
    prefixes: tuple[int, ...]
    suffixes: tuple[int, ...]


def _plan(model: str, master: str, described: ModelDescription | None, shape: _Shape) -> ServePlan:
    vocab_size, kv = vocabulary_of(described), kv_sizes(master, described)
    return ServePlan(model=model, vocab_size=vocab_size, kv=kv, **shape)


def _dtype_of(described: ModelDescription | None) -> str:
    return described.dtype if described is not None else "as served"


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


def _shape(quick: bool, repeats: int, prefix: list[int] | None, suffix: list[int] | None) -> _Shape:
    shape: _Shape = {"repeats": 1 if quick else repeats}
    if prefix or quick:
        shape["prefixes"] = tuple(prefix or QUICK_PREFIXES)
    if suffix or quick:
        shape["suffixes"] = tuple(suffix or QUICK_SUFFIXES)
    return shape
