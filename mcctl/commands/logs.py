"""mcctl logs: what daemons said, from the files of a local cluster or from the journal of this host's units."""

import time
from typing import Annotated

import typer

from mcctl import render, systemd
from mcctl.cluster import logs as local_logs
from mcctl.cluster.logs import LogFile
from mcctl.cluster.record import find_daemons, persistent_directory, read_record
from mcctl.commands import new_app
from mcctl.durations import duration
from mcctl.output_schema import prints
from mcctl.settings import Output, settings_of
from mcctl.systemd import JournalLine

app = new_app()

Lines = Annotated[int, typer.Option("--lines", "-n", min=0, help="The last so many.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come.")]
Seconds = Annotated[float | None, duration("--for", help="With --follow: end after so long.")]


@app.command()
@prints(
    {"daemon": str, "line": str},
    {"daemon": str, "time_s": float, "line": str},
    is_stream=True,
)
def logs(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DAEMON]...", help="master, cachenode@0, prefill-2, or prefill for all."
        ),
    ] = None,
    lines: Lines = 50,
    follow: Follow = False,
    seconds: Seconds = None,
    units: Annotated[
        bool, typer.Option("--units", help="Of the units, although a local cluster is there.")
    ] = False,
) -> None:
    """What daemons said: of `mcctl cluster up` if there is one, else of this host's units.

    \b
    Example: mcctl logs decode --follow
    """
    record = None if units else read_record(persistent_directory())
    if record is None:
        show_journal(context, names, lines, seconds, follow=follow)
        return
    files = [LogFile(daemon) for daemon in find_daemons(record, names or [])]
    ends_s = None if seconds is None else time.monotonic() + seconds
    _show_files(files, lines, settings_of(context).output, ends_s=ends_s, follows=follow)


def show_journal(
    context: typer.Context,
    names: list[str] | None,
    lines: int,
    seconds: float | None,
    *,
    follow: bool,
) -> None:
    """Of this host's units: the last lines, and what comes for `seconds` where it is followed."""
    output = settings_of(context).output
    meant = systemd.find_units(names or [], systemd.units()) or ["mc-*.service"]
    if not follow:
        for line in systemd.journal(meant, lines):
            _emit_journal(line, output)
        return
    ends_s = None if seconds is None else time.monotonic() + seconds
    for found in systemd.follow_journal(meant, lines, ends_s):
        if found is not None:
            _emit_journal(found, output)


def _show_files(
    files: list[LogFile], num_lines: int, output: Output, *, ends_s: float | None, follows: bool
) -> None:
    has_names = len(files) > 1
    for name, line in local_logs.last_lines(files, num_lines):
        _emit_line(name, line, output, has_names=has_names)
    if follows:
        for name, line in local_logs.follow(files, ends_s):
            _emit_line(name, line, output, has_names=has_names)


def _emit_line(name: str, line: str, output: Output, *, has_names: bool) -> None:
    match output:
        case "json":
            render.emit_json_line({"daemon": name, "line": line})
        case "plain":
            render.emit_line(f"{name}\t{line}")
        case "table":
            render.emit_line(f"{name:14} {line}" if has_names else line)


def _emit_journal(found: JournalLine, output: Output) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(found.time_s))
    match output:
        case "json":
            render.emit_json_line(
                {"daemon": found.unit, "time_s": found.time_s, "line": found.line}
            )
        case "plain":
            render.emit_line(f"{found.unit}\t{at}\t{found.line}")
        case "table":
            render.emit_line(f"{at} {found.unit:16} {found.line}")
