"""The mcctl command: global flags, nouns loaded only when used, and the boundary where errors become exit codes."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from daemons.core.errors import McError
from mcctl import exit_codes, watching
from mcctl.command_line.complaints import next_step, unforeseen
from mcctl.command_line.global_flags import OUTPUTS, set_flag
from mcctl.command_line.nouns import LazyGroup
from mcctl.durations import duration
from mcctl.render import complain
from mcctl.settings import Settings

HELP: Final = """Operate Mooncake MC: a local cluster, a running one, its KV cache and its requests.

Global options may stand before or after the verb. See mcctl(1) and mc(7).

\b
Example: mcctl cluster up
Example: mcctl request send --prompt "What is a lighthouse?"
Example: mcctl request explain
"""


app = typer.Typer(
    cls=LazyGroup,
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"mcctl {version('mooncake-mc')}")
        except PackageNotFoundError:
            typer.echo("mcctl (not installed)")
        raise typer.Exit


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
        duration(least_s=0.01, help="How long to wait for an answer: 30, 500ms, 1m."),
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
        duration(hidden=True, least_s=0.1, help="Between two looks of --watch."),
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
        set_flag(settings, flag, value)


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
        complain(error.message + next_step(error, settings))
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
        return unforeseen(error)


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


def run() -> int:
    """The process's command line; its exit code."""
    if sys.stdout is None:  # started with it closed: whatever is written goes nowhere
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    return main()
