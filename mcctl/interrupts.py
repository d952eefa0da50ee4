"""Ctrl-C while nothing is there to tidy up: before a command runs, and after it. It ends the process at once, silently.

In between it is Python's KeyboardInterrupt, so that commands end what they began. Imports nothing that takes time.
"""

import os
import signal
from types import FrameType

_EXIT = 130


def end_quietly() -> None:
    """From here on. Where the parent ignores the signal (nohup), or a test handles it, nothing changes."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """The command is loaded: it must hear of it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_signum: int, _frame: FrameType | None) -> None:
    os._exit(_EXIT)
