"""mcctl bench store: named objects beside limits of the same run."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from mcctl import render
from mcctl.bench import store as store_bench
from mcctl.bench.published_store import published_master
from mcctl.bench.store_pool import StorePool
from mcctl.bench.tables import STORE_BESIDE_COLUMNS, STORE_COLUMNS, WRITER_COLUMNS
from mcctl.durations import duration
from mcctl.output_schema import prints
from mcctl.settings import settings_of


@prints(store_bench.StoreResult)
def store(
    context: typer.Context,
    writers: Annotated[
        str, typer.Option(help="Numbers of writer processes, with commas; 0 for none.")
    ] = "1,2,4",
    rounds: Annotated[int, typer.Option(min=1, help="Each figure is the median of so many.")] = 15,
    seconds: Annotated[float, duration(least_s=0.1, help="So long each number writes.")] = 2.0,
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
    Example: mcctl bench store --running --endpoint tcp://10.0.0.1:7700
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


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write numbers with commas, like 1,2,4") from None
    if not all(0 <= number <= 64 for number in numbers):
        raise typer.BadParameter(f"{text!r}: a number of writers is between 0 and 64")
    return [number for number in numbers if number]
