"""SIGTERM, and SIGHUP of a closed terminal, end a command as Ctrl-C does: by an exception, so that `finally` runs."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

Handler = Callable[[int, FrameType | None], object] | int | None
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class SigtermTrap:
    """Set while there is something to tidy up. Only the main thread may ask for it; elsewhere nothing changes."""

    def __init__(self) -> None:
        self._old: dict[signal.Signals, Handler] = {}

    def set(self) -> None:
        for signum in _ENDING:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup
                self._replace(signum, _raise_exit)

    def deafen(self) -> None:
        """While tidying up, which takes seconds at most: a signal in the middle would leave the rest."""
        for signum in (signal.SIGINT, *_ENDING):
            self._replace(signum, signal.SIG_IGN)

    def restore(self) -> None:
        for signum, handler in self._old.items():
            signal.signal(signum, handler)
        self._old.clear()

    def _replace(self, signum: signal.Signals, handler: Handler) -> None:
        try:
            old = signal.signal(signum, handler)
        except ValueError:
            return
        self._old.setdefault(signum, old)


def _raise_exit(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
