"""Flags that take a duration: seconds, or a number with its unit, such as 90s, 10m or 1h30m."""

from collections.abc import Callable
from typing import Any

import typer

from daemons.core.errors import ConfigError
from daemons.core.units import parse_duration
from mcctl.numbers import check_number


def duration(
    *names: str, help: str, least_s: float = 0.0, most_s: float | None = None, hidden: bool = False
) -> Any:
    """A typer.Option whose value is in seconds. `names` as there: none for that of the parameter."""
    return typer.Option(
        *names, help=help, metavar="DURATION", parser=_reader(least_s, most_s), hidden=hidden
    )


def _reader(least_s: float, most_s: float | None) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            seconds = parse_duration(text)
        except ConfigError as error:
            raise typer.BadParameter(error.message) from None
        check_number(seconds)
        if seconds < least_s:
            raise typer.BadParameter(f"{text}: at least {least_s:g} s")
        if most_s is not None and seconds > most_s:
            raise typer.BadParameter(f"{text}: at most {most_s:g} s")
        return seconds

    return read
