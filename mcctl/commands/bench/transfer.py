"""mcctl bench transfer: the Transfer Engine beside what the machine can do."""

from pathlib import Path
from typing import Annotated

import typer

from daemons.core.errors import ConfigError
from daemons.core.units import parse_size
from daemons.transfer.transports.rdma import why_unavailable
from mcctl import render
from mcctl.bench import transfer as transfer_bench
from mcctl.bench.tables import BESIDE_COLUMNS, TRANSFER_COLUMNS
from mcctl.commands import check_size
from mcctl.output_schema import prints
from mcctl.settings import settings_of


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
