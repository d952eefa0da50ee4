"""Global flags: laid over the Settings, before the verb or behind it; and what some verbs have beside them."""

import copy
import os
from typing import Any, Final

import typer

from daemons.config.forms import is_endpoint
from daemons.protocol.address import is_public_key
from mcctl import output_schema, render, watching
from mcctl.numbers import check_number
from mcctl.settings import Output, Settings

OUTPUTS: Final[tuple[Output, ...]] = ("table", "json", "plain")
OF_WATCHING: Final = ("watch", "interval")
"""Hidden options of the root, of which verbs that can be watched get their own."""

GLOBALS: Final = {
    "config": "config",
    "endpoint": "endpoint",
    "timeout": "timeout_s",
    "key_file": "key_file_flag",
    "master_key": "master_key_flag",
    "output": "output_flag",
    "verbose": "verbose",
    "no_color": "no_color",
}
"""Flag -> field of Settings."""


def set_flag(settings: Settings, flag: str, value: Any) -> None:
    if value is None:
        return
    check_number(value)
    if flag == "output" and value not in OUTPUTS:
        after = "; --output schema stands after the verb" if value == "schema" else ""
        raise typer.BadParameter(f"--output {value}: write one of {', '.join(OUTPUTS)}{after}")
    if flag == "endpoint" and not is_endpoint(value):
        raise typer.BadParameter(
            f"--endpoint {value}: write tcp://HOST:PORT, the master's node.listen"
        )
    if flag == "master_key" and not is_public_key(value):
        raise typer.BadParameter(
            f"--master-key {value}: write 64 hex digits, as mcctl keys list shows"
        )
    if flag == "no_color" and value:
        os.environ["NO_COLOR"] = "1"  # also for what is run as a process of its own
    setattr(settings, GLOBALS[flag], value)


def as_shared(param: Any) -> Any:
    """A copy of a root option for a verb: not passed to its function, but laid over the Settings."""

    def store(context: Any, option: Any, value: Any) -> Any:
        set_flag(context.find_root().ensure_object(Settings), option.name, value)
        return value

    shared = copy.copy(param)
    shared.expose_value = False
    shared.callback = store
    return shared


def let_show_schema(leaf: Any) -> None:
    """--output schema says what --output json prints, and does nothing else."""
    option = next(param for param in leaf.params if param.name == "output")
    store = option.callback

    def show(context: Any, option: Any, value: Any) -> Any:
        if value != "schema":
            return store(context, option, value)
        words = context.command_path.removeprefix("mcctl ")
        printed = output_schema.printed_by(leaf.callback)
        if printed is None:
            raise typer.BadParameter(f"{words} prints no JSON")
        render.emit_json(output_schema.schema_of(printed, f"mcctl {words}"))
        raise typer.Exit

    option.callback, option.is_eager = show, True


def let_watch(leaf: Any, options: list[Any]) -> None:
    """Give a verb --watch and --interval."""
    given: dict[str, Any] = {}

    def keep(_context: Any, option: Any, value: Any) -> Any:
        check_number(value)
        given[option.name] = value
        return value

    for option in options:
        own = copy.copy(option)
        own.expose_value, own.hidden, own.callback = False, False, keep
        leaf.params.append(own)
    leaf.callback = watching.repeated(
        leaf.callback, lambda: given.get("interval") if given.get("watch") else None
    )
