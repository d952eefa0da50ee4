"""mcctl simulate fit: a hardware profile from what `mcctl bench serve` measured."""

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer

from daemons.core.errors import ConfigError, NotFound
from daemons.protocol.base import MALFORMED
from daemons.simulation.hardware import DEFAULT, find_profile
from mcctl import render
from mcctl.bench.serve_result import ServeResult
from mcctl.bench.ssd import SsdResult
from mcctl.bench.transfer import TransferResult
from mcctl.commands.simulate.flags import Hardware
from mcctl.output_schema import prints
from mcctl.settings import settings_of
from mcctl.views.fitted_profile import FIT_COLUMNS, FitResult, fitted, profile_text
from mcctl.views.fitted_rates import RATE_COLUMNS, network_rate, ssd_rate

Printed = TypeVar("Printed", bound=msgspec.Struct)


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
    transfer: Annotated[
        Path | None,
        typer.Option(help="The network, of what bench transfer -o json printed.", metavar="FILE"),
    ] = None,
    ssd: Annotated[
        Path | None,
        typer.Option(help="SSD reads, of what bench ssd -o json printed.", metavar="FILE"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the TOML to this file, not to stdout.")
    ] = None,
) -> None:
    """A hardware profile from what `bench serve` measured.

    Rates that were not measured are the profile's of --hardware; the table says which. Errors are on stderr.

    \b
    Example: mcctl simulate fit serve.json --out mine.toml
    Example: mcctl simulate fit serve.json > mine.toml
    Example: mcctl simulate fit serve.json --transfer transfer.json --ssd ssd.json
    """
    runs = [read_served(path) for path in measured]
    rates = {}
    if transfer is not None:
        rates["bandwidth.network"] = network_rate(_read(transfer, TransferResult, "bench transfer"))
    if ssd is not None:
        rates["ssd.read"] = ssd_rate(_read(ssd, SsdResult, "bench ssd DIRECTORY"))
    base = find_profile(hardware)
    result = fitted(runs, base, base_name=hardware, with_drafts=drafts, rates=rates)
    text = profile_text(result)
    if out is not None:
        _write(out, text)
    output = settings_of(context).output
    if output == "json":
        render.emit_json(result)
        return
    title = f"{result.model} ({result.dtype})"
    render.show_table(title, FIT_COLUMNS, result.times, on_stderr=out is None)
    render.show_table("rates", RATE_COLUMNS, result.rates, on_stderr=out is None)
    render.note(f"not measured, but of {result.base}: {', '.join(result.of_base)}")
    if out is None:
        render.emit_text(text)


def read_served(path: Path) -> ServeResult:
    """Raises NotFound, or ConfigError."""
    return _read(path, ServeResult, "bench serve", "--quick ")


def _read(path: Path, kind: type[Printed], verb: str, flags: str = "") -> Printed:
    """What this verb printed as JSON. Raises NotFound, or ConfigError."""
    make = f"to measure: mcctl {verb} {flags}--output json >"
    try:
        said = path.read_bytes()
    except OSError as error:
        raise NotFound(
            f"{path} cannot be read: {error.strerror or error}; {make} {path}"
        ) from error
    if not said:
        raise ConfigError(f"{path} is empty: a measurement prints once it is over; {make} {path}")
    try:
        return msgspec.json.decode(said, type=kind)
    except MALFORMED as error:
        raise ConfigError(
            f"{path} is not what mcctl {verb} --output json prints: {error}; {make} FILE"
        ) from error


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror or error}") from error
