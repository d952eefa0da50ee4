"""The mcctl command: global flags, nouns loaded only when used, and the boundary where errors become exit codes."""

import copy
import errno
import importlib
import os
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import typer.core

from daemons.config.forms import is_endpoint, show
from daemons.core.errors import ConfigError, Exhausted, McError, Unavailable
from daemons.protocol.address import is_public_key
from mcctl import exit_codes, interrupts, output_schema, render, watching
from mcctl.numbers import check_number, with_known_numbers
from mcctl.render import complain, note, printable
from mcctl.settings import DEFAULT_ENDPOINT, DEFAULT_URL, Output, Settings

HELP: Final = """Operate Mooncake MC: a local cluster, a running one, its KV cache and its requests.

Global options may stand before or after the verb. See mcctl(1) and mc(7).

\b
Example: mcctl cluster up
Example: mcctl request send --prompt "What is a lighthouse?"
Example: mcctl request explain
"""


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A noun or verb in `mcctl.commands`, with the line that `mcctl --help` shows for it."""

    module: str
    help: str


COMMANDS: Final = {
    "quickstart": LazyCommand("quickstart", "Run real chat traffic, show what the cache did."),
    "cluster": LazyCommand("cluster", "Keep a cluster on this host: up, down, status."),
    "status": LazyCommand("status", "One look at the cluster: nodes, pool, requests."),
    "top": LazyCommand("top", "Watch the cluster work: nodes, hit ratio, TTFT, requests."),
    "topology": LazyCommand(
        "topology", "Cluster tree and data paths: show, discover, check, probe."
    ),
    "node": LazyCommand("node", "The processes that joined: list, show, drain, undrain, remove."),
    "segment": LazyCommand("segment", "Memory that cache nodes lend: list, add, remove."),
    "cache": LazyCommand(
        "cache", "KV blocks in the pool: list, show, locate, pin, replicate, move, flush, clear."
    ),
    "request": LazyCommand("request", "Send a prompt; list, show and explain recent requests."),
    "wait": LazyCommand("wait", "Until the cluster is ready, or a node drained."),
    "events": LazyCommand("events", "Follow blocks and nodes as they come and go."),
    "logs": LazyCommand("logs", "What daemons said: a local cluster's, or this host's units."),
    "service": LazyCommand("service", "Units of this host: list, start, stop, restart, logs."),
    "model": LazyCommand("model", "Models on this host: fetch, list, convert."),
    "bench": LazyCommand("bench", "Measure a cluster."),
    "doctor": LazyCommand("doctor", "Find what keeps this host from serving well, and the fix."),
    "simulate": LazyCommand(
        "simulate", "Replay traffic on a modelled cluster: run, plan, reproduce."
    ),
    "tenant": LazyCommand("tenant", "Tenants of gateways: API keys, limits, usage."),
    "keys": LazyCommand("keys", "Keys of daemons and operators: make, authorize, revoke."),
    "config": LazyCommand("config", "Check and show config files."),
}


class LazyGroup(typer.core.TyperGroup):
    """Help and completion see the table above; only the command that runs is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        return typer.core.TyperCommand(cmd_name, help=lazy.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            for near in get_close_matches(args[0], COMMANDS, n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near!r}?")
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = self.load(name)
        return name, command, rest

    def load(self, name: str) -> Any:
        """Import a command; the global options are added to each of its verbs."""
        module = importlib.import_module(f"mcctl.commands.{COMMANDS[name].module}")
        interrupts.raise_again()
        command: Any = typer.main.get_command(module.app)
        command.name = name
        command.help = command.help or COMMANDS[name].help
        shared = [p for p in self.params if p.name in _GLOBALS]
        for leaf in [*getattr(command, "commands", {}).values(), command]:
            if not getattr(leaf, "commands", None):
                leaf.params.extend(_as_shared(param) for param in shared)
                _let_show_schema(leaf)
                leaf.callback = with_known_numbers(leaf.callback)
                if watching.is_watchable(leaf.callback):
                    _let_watch(leaf, [p for p in self.params if p.name in _OF_WATCHING])
        return command


app = typer.Typer(
    cls=LazyGroup,
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_GLOBALS: Final = {
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


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"mcctl {version('mooncake-mc')}")
        except PackageNotFoundError:
            typer.echo("mcctl (not installed)")
        raise typer.Exit


_OF_WATCHING: Final = ("watch", "interval")
"""Hidden options of the root, of which verbs that can be watched get their own."""


@app.callback()
def _root(  # noqa: PLR0913, PLR0917 - one for each global flag
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(help="File with defaults of these flags.", metavar="FILE"),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="The master, e.g. tcp://10.0.0.1:7700.", metavar="ENDPOINT")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds to wait for an answer.", min=0.01, metavar="SECONDS"),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="table, json or plain; schema: what json prints.",
            metavar="FORMAT",
            autocompletion=lambda: [*OUTPUTS, "schema"],
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(help="Your own key, of a cluster that has keys.", metavar="FILE"),
    ] = None,
    master_key: Annotated[
        str | None, typer.Option(help="Public key of its master.", metavar="HEX")
    ] = None,
    verbose: Annotated[
        bool | None, typer.Option("--verbose", "-v", help="Say more; show tracebacks.")
    ] = None,
    no_color: Annotated[
        bool | None, typer.Option("--no-color", help="No colors, no bold; as NO_COLOR=1.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", hidden=True, help="Look again and again, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(hidden=True, min=0.1, metavar="SECONDS", help="Between two looks of --watch."),
    ] = watching.DEFAULT_S,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    settings = context.ensure_object(Settings)
    if watch or interval != watching.DEFAULT_S:
        raise typer.BadParameter("--watch and --interval stand after the verb")
    given = {
        "config": config,
        "endpoint": endpoint,
        "timeout": timeout,
        "output": output,
        "key_file": key_file,
        "master_key": master_key,
        "verbose": verbose,
        "no_color": no_color,
    }
    for flag, value in given.items():
        _set_flag(settings, flag, value)


OUTPUTS: Final[tuple[Output, ...]] = ("table", "json", "plain")


def _set_flag(settings: Settings, flag: str, value: Any) -> None:
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
    setattr(settings, _GLOBALS[flag], value)


def _as_shared(param: Any) -> Any:
    """A copy of a root option for a verb: not passed to its function, but laid over the Settings."""

    def store(context: Any, option: Any, value: Any) -> Any:
        _set_flag(context.find_root().ensure_object(Settings), option.name, value)
        return value

    shared = copy.copy(param)
    shared.expose_value = False
    shared.callback = store
    return shared


def _let_show_schema(leaf: Any) -> None:
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


def _let_watch(leaf: Any, options: list[Any]) -> None:
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


_CANNOT_WRITE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_NO_SUCH_FILE: Final = (
    errno.EACCES,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)
"""Of a path that was named: to be put right by whoever named it."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; the exit code. Raises nothing but what argument parsing prints by itself."""
    command: Any = typer.main.get_command(app)
    settings = Settings()
    try:
        result = _run_command(command, arguments, settings)
        if result == exit_codes.INTERRUPTED:  # Ctrl-C, of which typer makes an exit code
            complain("interrupted")
        return result if isinstance(result, int) else exit_codes.OK
    except McError as error:
        if settings.verbose:
            raise
        complain(error.message + _next_step(error, settings))
        return exit_codes.exit_code(error)
    except (typer.Abort, KeyboardInterrupt):
        complain("interrupted")
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.OK
    except Exception as error:
        if settings.verbose and not hasattr(error, "format_message"):
            raise
        return _unforeseen(error)


def _run_command(command: Any, arguments: list[str] | None, settings: Settings) -> Any:
    """All that it printed is out when this returns. Raises BrokenPipeError where nobody reads it."""
    try:
        result = command.main(
            args=arguments, prog_name="mcctl", standalone_mode=False, obj=settings
        )
    except SystemExit as end:  # typer makes one of a broken pipe
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        raise
    sys.stdout.flush()
    return result


def _next_step(error: McError, settings: Settings) -> str:
    """Nobody at the defaults: most likely there is no cluster yet. Cut off with a key, but no key of the master's."""
    if not isinstance(error, Unavailable):
        return ""
    if "before a word was said" in error.message and settings.key_file and not settings.master_key:
        return "; --master-key is missing: --key-file needs the public key of the master beside it"
    if error.message.startswith(f"{DEFAULT_ENDPOINT} does not answer"):
        return " `mcctl cluster up` starts a cluster here, --endpoint names the master of another"
    if error.message.startswith(f"no gateway at {DEFAULT_URL};"):
        return ", `mcctl cluster up` starts a cluster here"
    return ""


def _unforeseen(error: Exception) -> int:
    """What no command expects: wrong arguments, a full disk, a bug."""
    if hasattr(error, "format_message"):  # argument parsing
        if type(error).__name__ == "NoArgsIsHelpError":
            note(str(error))  # the help itself
        else:
            complain(_usage(error))
        return exit_codes.USAGE
    if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
        complain(f"cannot write {error.filename or 'the output'}: {error.strerror}")
        return exit_codes.exit_code(Exhausted(""))
    if isinstance(error, UnicodeEncodeError):  # an argument in another encoding
        complain(
            f"{printable(error.object.encode('utf-8', 'backslashreplace').decode()[:80])} is not UTF-8 text"
        )
        return exit_codes.USAGE
    if isinstance(error, OSError) and error.errno in _NO_SUCH_FILE and error.filename is not None:
        complain(f"cannot use {show(os.fsdecode(error.filename))}: {error.strerror}")
        return exit_codes.exit_code(ConfigError(""))
    complain(f"this is a bug: {type(error).__name__}: {error}; --verbose shows where")
    return exit_codes.BUG


def _usage(error: Any) -> str:
    path = error.ctx.command_path if getattr(error, "ctx", None) is not None else "mcctl"
    problem = error.format_message().strip()
    end = "" if problem.endswith((".", "?", "!")) else "."
    return f"{problem}{end} Try `{path} --help`."


def run() -> int:
    """The process's command line; its exit code."""
    if sys.stdout is None:  # started with it closed: whatever is written goes nowhere
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    return main()
