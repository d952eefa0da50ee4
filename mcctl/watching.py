"""--watch: a verb that only looks is run again and again, until Ctrl-C.

On a terminal each picture takes the place of the one before; elsewhere they follow each other. A cluster that goes
away in between is said and waited for.
"""

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from daemons.core.errors import Unavailable
from mcctl import render

DEFAULT_S: Final = 2.0
_MARK: Final = "is_watchable"
_HOME_AND_CLEAR: Final = "\x1b[H\x1b[2J"

Verb = TypeVar("Verb", bound=Callable[..., Any])


def watchable(verb: Verb) -> Verb:
    """Decorator, below `@app.command`: the verb gets --watch."""
    setattr(verb, _MARK, True)
    return verb


def is_watchable(callback: Callable[..., Any] | None) -> bool:
    return getattr(callback, _MARK, False)


def repeated(
    callback: Callable[..., Any], interval_s: Callable[[], float | None]
) -> Callable[..., Any]:
    """Runs once where `interval_s` is None. The first failure is the command's, as without --watch."""

    @functools.wraps(callback)
    def run(*args: Any, **kwargs: Any) -> Any:
        wait_s = interval_s()
        if wait_s is None:
            return callback(*args, **kwargs)
        _clear()
        callback(*args, **kwargs)
        while True:
            time.sleep(wait_s)
            _clear()
            try:
                callback(*args, **kwargs)
            except Unavailable as error:
                render.complain(error.message)

    return run


def _clear() -> None:
    if sys.stdout.isatty():
        render.emit_text(_HOME_AND_CLEAR)
