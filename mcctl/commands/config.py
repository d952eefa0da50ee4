"""mcctl config: check files before a daemon reads them, show what it would run with."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from daemons.config.base import load_config
from daemons.config.exposure import refuse_exposed
from daemons.core.errors import McError
from mcctl import config_text, exit_codes, render
from mcctl.commands import new_app
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import settings_of

app = new_app()


class CheckedFile(msgspec.Struct, frozen=True, kw_only=True):
    """`problem` is empty for a good file."""

    path: str
    process: str
    problem: str


@app.command()
@prints({"files": list[CheckedFile]})
def check(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(help="Named like the process: mc-prefill.toml, mc-prefill@gpu0.toml."),
    ],
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Of daemons that are started with it, too.")
    ] = False,
) -> int:
    """Say what a daemon would say about its config. Exits with 78 when one is wrong.

    \b
    Example: mcctl config check /etc/mooncake/mc-*.toml
    """
    checked = [_check(path, insecure=insecure) for path in files]
    output = settings_of(context).output
    if output == "json":
        render.emit_json({"files": checked})
    else:
        for item in checked:
            if item.problem:
                render.complain(item.problem)
            else:
                render.emit_line(f"{item.path}: ok ({item.process})")
    is_good = not any(item.problem for item in checked)
    return exit_codes.OK if is_good else exit_codes.BY_FAMILY["config"]


@app.command()
@prints(
    {"process": str, "defaults": dict[str, Any]},
    {"process": str, "values": dict[str, dict[str, Any]]},
)
def show(
    context: typer.Context,
    what: Annotated[str, typer.Argument(help="A process such as mc-prefill, or a config file.")],
) -> None:
    """Every key with its default, or every value a file leads to.

    \b
    Example: mcctl config show mc-prefill > mc-prefill@gpu0.toml
    Example: mcctl config show /etc/mooncake/mc-master.toml
    """
    output = settings_of(context).output
    if what in config_text.PROCESSES:
        if output != "json":
            render.emit_text(config_text.commented(what))
            return
        found = config_text.tables(config_text.PROCESSES[what])
        keys = {key.path: None if key.is_required else key.default for t in found for key in t.keys}
        render.emit_json({"process": what, "defaults": keys})
        return
    path = Path(what)
    process = config_text.process_of(path)
    values = config_text.effective(load_config(path, config_text.PROCESSES[process]))
    rows = [(f"{s}.{key}", value) for s, keys in values.items() for key, value in keys.items()]
    columns = [Column("key", lambda row: row[0]), Column("value", lambda row: _toml(row[1]))]
    render.emit(output, {"process": process, "values": values}, columns, rows)


def _check(path: Path, *, insecure: bool) -> CheckedFile:
    process, problem = "?", ""
    try:
        process = config_text.process_of(path)
        config = load_config(path, config_text.PROCESSES[process])
        if not insecure:
            refuse_exposed(config)
    except McError as error:
        problem = error.message if str(path) in error.message else f"{path}: {error.message}"
    return CheckedFile(path=str(path), process=process, problem=problem)


def _toml(value: object) -> str:
    return msgspec.json.encode(value).decode()
