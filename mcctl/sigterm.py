"""SIGTERM ends a command as Ctrl-C does: by an exception, so that every `finally` runs."""

import signal
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | int | None


class SigtermTrap:
    """Set while there is something to tidy up. Only the main thread may ask for it; elsewhere nothing changes."""

    def __init__(self) -> None:
        self._old: Handler = None

    def set(self) -> None:
        try:
            self._old = signal.signal(signal.SIGTERM, _raise_exit)
        except ValueError:
            self._old = None

    def restore(self) -> None:
        if self._old is not None:
            signal.signal(signal.SIGTERM, self._old)
            self._old = None


def _raise_exit(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
