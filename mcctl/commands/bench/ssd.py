"""mcctl bench ssd: an SSD tier on a disk of this host."""

from pathlib import Path
from typing import Annotated

import typer

from daemons.core.units import parse_size
from mcctl import render
from mcctl.bench import ssd as ssd_bench
from mcctl.bench.tables import SSD_COLUMNS
from mcctl.commands import check_size
from mcctl.output_schema import prints
from mcctl.settings import settings_of


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
