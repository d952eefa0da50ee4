"""Work in bounded pieces beside the calls of a loop: piece after piece while there is some, else a look now and then.

A process that has nothing to do sleeps: each time it wakes costs power, and on some virtual machines milliseconds.
"""

from collections.abc import Callable
from typing import Final

from daemons.rpc.loop import Loop, Timer

BUSY_S: Final = 0.02
"""Between two pieces; calls are answered meanwhile."""
IDLE_S: Final = 0.25
"""After a piece that found nothing to do."""


class Background:
    """Loop thread only. `do_piece` says whether there is more to do now."""

    def __init__(self, loop: Loop, do_piece: Callable[[], bool]) -> None:
        self._loop = loop
        self._do_piece = do_piece
        self._timer: Timer
        self._is_soon = False
        self._schedule(is_soon=False)

    def wake(self) -> None:
        """There is something to do; it begins within BUSY_S."""
        if not self._is_soon:
            self._timer.cancel()
            self._schedule(is_soon=True)

    def _schedule(self, *, is_soon: bool) -> None:
        self._is_soon = is_soon
        self._timer = self._loop.call_later(BUSY_S if is_soon else IDLE_S, self._run)

    def _run(self) -> None:
        """It goes on after a piece that failed, too; that is told as of any callback."""
        is_more = False
        try:
            is_more = self._do_piece()
        finally:
            self._schedule(is_soon=is_more)
