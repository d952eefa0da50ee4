"""mcctl bench conductor: how long a plan takes."""

from typing import Annotated

import typer

from daemons.simulation.disaggregated import POLICY_NAMES
from daemons.simulation.hardware import DEFAULT, find_profile
from mcctl import render
from mcctl.bench import conductor as conductor_bench
from mcctl.bench.conductor import ConductorResult
from mcctl.bench.tables import CONDUCTOR_COLUMNS
from mcctl.output_schema import prints
from mcctl.settings import settings_of

_CONDUCTOR_INSTANCES = (16, 128, 1000)


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
    Example: mcctl bench conductor --instances 64 --blocks 2000 --policy time
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
