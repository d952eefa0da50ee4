"""mcctl simulate reproduce: the papers' figures beside ours."""

from pathlib import Path
from typing import Annotated

import typer

from daemons.core.errors import McError
from daemons.simulation import reproduce as figures
from daemons.simulation.hardware import DEFAULT, find_profile
from daemons.simulation.trace import read_trace
from mcctl import render
from mcctl.output_schema import prints
from mcctl.settings import settings_of
from mcctl.views.simulation import COMPARISON_COLUMNS


@prints({"rows": list[figures.Comparison]})
def reproduce(
    context: typer.Context,
    trace: Annotated[Path, typer.Argument(help="Mooncake's published conversation trace.")],
    figure: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(figures.FIGURES)}; may be repeated, all otherwise."),
    ] = None,
) -> None:
    """The papers' figures beside ours. Exits with 1 when a row misses its tolerance.

    \b
    Example: mcctl simulate reproduce conversation_trace.jsonl --figure scheduling
    """
    names = figure or list(figures.FIGURES)
    unknown = [name for name in names if name not in figures.FIGURES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(figures.FIGURES)}")
    requests, profile = read_trace(trace), find_profile(DEFAULT)
    rows: list[figures.Comparison] = []
    with render.progress("replaying") as progress:
        for name in names:
            rows.extend(figures.FIGURES[name](requests, profile, progress))
    output = settings_of(context).output
    render.emit(output, {"rows": rows}, COMPARISON_COLUMNS, rows, title="ours beside the papers'")
    missed = sum(not row.is_met for row in rows)
    if missed:
        raise McError(f"{missed} of {sum(row.is_goal for row in rows)} goals are out of tolerance")
