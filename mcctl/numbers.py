"""Numbers of a command line that are larger than any command knows: a slip, told before the command begins."""

import functools
from collections.abc import Callable
from typing import Any, Final

import typer

MAX_WHOLE: Final = (1 << 63) - 1
"""What messages hold."""
MAX_REAL: Final = 1e9
"""As seconds some thirty years; no clock waits much longer."""


def check_number(value: object) -> None:
    """Raises BadParameter for one that is none, too."""
    if not isinstance(value, int | float):
        return
    bound = MAX_WHOLE if isinstance(value, int) else MAX_REAL
    if not -bound <= value <= bound:
        raise typer.BadParameter("a number is larger than any that is known here")


def with_known_numbers(callback: Callable[..., Any]) -> Callable[..., Any]:
    """A verb that begins only where all of its numbers are."""

    @functools.wraps(callback)
    def run(*args: Any, **kwargs: Any) -> Any:
        for value in kwargs.values():
            check_number(value)
        return callback(*args, **kwargs)

    return run
