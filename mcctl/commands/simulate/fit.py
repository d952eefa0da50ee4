"""mcctl simulate fit: a hardware profile from what `mcctl bench serve` measured."""

from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from daemons.core.errors import ConfigError, NotFound
from daemons.protocol.base import MALFORMED
from daemons.simulation.hardware import DEFAULT, find_profile
from mcctl import render
from mcctl.bench.serve_result import ServeResult
from mcctl.commands.simulate.flags import Hardware
from mcctl.output_schema import prints
from mcctl.settings import settings_of
from mcctl.views.fitted_profile import FIT_COLUMNS, FitResult, fitted, profile_text

_MAKE: Final = "to measure: mcctl bench serve --quick --output json >"


@prints(FitResult)
def fit(
    context: typer.Context,
    measured: Annotated[
        list[Path],
        typer.Argument(help="What mcctl bench serve -o json printed.", metavar="FILE"),
    ],
    hardware: Hardware = DEFAULT,
    drafts: Annotated[
        bool, typer.Option("--drafts", help="Decode as served; otherwise a token a step.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the TOML to this file, not to stdout.")
    ] = None,
) -> None:
    """A hardware profile from what `bench serve` measured.

    What that does not measure, storage and the network, is the profile's of --hardware; errors are on stderr.

    \b
    Example: mcctl simulate fit serve.json --out mine.toml
    Example: mcctl simulate fit serve.json > mine.toml
    """
    runs = [read_served(path) for path in measured]
    result = fitted(runs, find_profile(hardware), base_name=hardware, with_drafts=drafts)
    text = profile_text(result)
    if out is not None:
        _write(out, text)
    output = settings_of(context).output
    if output == "json":
        render.emit_json(result)
        return
    title = f"{result.model} ({result.dtype})"
    render.show_table(title, FIT_COLUMNS, result.times, on_stderr=out is None)
    render.note(f"not measured, but of {result.base}: {', '.join(result.of_base)}")
    if out is None:
        render.emit_text(text)


def read_served(path: Path) -> ServeResult:
    """Raises NotFound, or ConfigError."""
    try:
        said = path.read_bytes()
    except OSError as error:
        raise NotFound(
            f"{path} cannot be read: {error.strerror or error}; {_MAKE} {path}"
        ) from error
    if not said:
        raise ConfigError(f"{path} is empty: a measurement prints once it is over; {_MAKE} {path}")
    try:
        return msgspec.json.decode(said, type=ServeResult)
    except MALFORMED as error:
        raise ConfigError(
            f"{path} is not what mcctl bench serve --output json prints: {error}; {_MAKE} FILE"
        ) from error


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror or error}") from error
