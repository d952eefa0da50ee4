"""mcctl service: the daemons that this host runs as systemd units."""

import sys
from typing import Annotated

import msgspec
import typer

from daemons.core.errors import Rejected
from daemons.core.units import format_size
from mcctl import exit_codes, render, systemd
from mcctl.commands import new_app
from mcctl.commands.logs import Follow, Lines, Seconds, show_journal
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.systemd import Unit
from mcctl.watching import watchable

app = new_app()

_Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[UNIT]...", help="master, cachenode@0, or cachenode for all; all otherwise."
    ),
]


class ServiceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the verbs print; fields are only ever added."""

    units: list[Unit]


@app.callback()
def _noun() -> None:
    """The daemons that this host runs as systemd units. See mc-deploy(7)."""


@app.command("list")
@prints(ServiceResult)
@watchable
def list_units(context: typer.Context, names: _Names = None) -> int:
    """Units of this host: state, memory, restarts, what they say. Exits with 7 when one has failed.

    \b
    Example: mcctl service list --watch
    """
    return _show(context, names)


@app.command()
@prints(ServiceResult)
def start(context: typer.Context, names: _Names = None) -> int:
    """Start units and wait until they serve.

    Without names mooncake.target, with all that are enabled.

    \b
    Example: mcctl service start cachenode@0
    """
    return _change(context, "start", names)


@app.command()
@prints(ServiceResult)
def stop(
    context: typer.Context,
    names: _Names = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> int:
    """Drain units and end them. Asks before it ends all of them.

    \b
    Example: mcctl service stop decode@gpu0
    """
    if not names and not yes:
        _confirm("stop")
    return _change(context, "stop", names)


@app.command()
@prints(ServiceResult)
def restart(
    context: typer.Context,
    names: _Names = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> int:
    """Drain units and start them anew. Asks before it restarts all of them.

    \b
    Example: mcctl service restart prefill
    """
    if not names and not yes:
        _confirm("restart")
    return _change(context, "restart", names)


@app.command()
@prints({"daemon": str, "time_s": float, "line": str}, is_stream=True)
def logs(
    context: typer.Context,
    names: _Names = None,
    lines: Lines = 50,
    follow: Follow = False,
    seconds: Seconds = None,
) -> None:
    """What units of this host said, from the journal.

    \b
    Example: mcctl service logs cachenode@0 --follow
    """
    show_journal(context, names, lines, seconds, follow=follow)


def _confirm(verb: str) -> None:
    if not sys.stdin.isatty():
        raise Rejected(f"{verb} means all daemons of this host; name some, or say --yes")
    typer.confirm(f"{verb.capitalize()} all daemons of this host?", abort=True, err=True)


def _change(context: typer.Context, verb: str, names: list[str] | None) -> int:
    known = systemd.units()
    meant = systemd.find_units(names, known) if names else [systemd.TARGET]
    with render.progress(f"systemctl {verb} {' '.join(meant)}"):
        systemd.change(verb, meant)
    return _show(context, names)


def _show(context: typer.Context, names: list[str] | None) -> int:
    known = systemd.units()
    meant = set(systemd.find_units(names, known)) if names else None
    shown = [unit for unit in known if meant is None or f"{unit.name}.service" in meant]
    columns = [
        Column("unit", lambda u: u.name),
        Column("state", _state),
        Column("enabled", lambda u: "yes" if u.is_enabled else "no", extra=3),
        Column("pid", lambda u: str(u.pid or "-"), is_number=True, extra=2),
        Column("memory", _memory, is_number=True),
        Column("restarts", lambda u: str(u.num_restarts), is_number=True, extra=1),
        Column("says", lambda u: u.status, is_prose=True),
    ]
    render.emit(settings_of(context).output, ServiceResult(units=shown), columns, shown)
    if not shown:
        render.note("no unit of Mooncake MC is loaded or enabled here; mc-deploy(7) tells how")
    has_failed = any(unit.state == "failed" for unit in shown)
    return exit_codes.BY_FAMILY["unavailable"] if has_failed else exit_codes.OK


def _state(unit: Unit) -> str:
    if unit.state == "failed":
        return f"FAILED ({unit.result})"
    return unit.state if unit.state == "inactive" else f"{unit.state} ({unit.substate})"


def _memory(unit: Unit) -> str:
    return "-" if unit.memory_bytes is None else format_size(unit.memory_bytes)
