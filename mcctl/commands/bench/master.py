"""mcctl bench master: what the master takes for a block."""

from typing import Annotated

import typer

from mcctl import render
from mcctl.bench import master as master_bench
from mcctl.bench.store_pool import StorePool
from mcctl.output_schema import prints
from mcctl.settings import settings_of


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
