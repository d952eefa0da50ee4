"""Lines that others can cause without end must not fill the disk: warnings, errors, and what says `extra=BOUNDED`. A
handler that writes the same text once a minute, and of one kind (one format string) at most so many texts; then it
says how many it left out.
"""

import logging
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from daemons.core.clock import Clock, monotonic

WINDOW_S: Final = 60.0
MAX_TEXTS: Final = 20
_MAX_KINDS: Final = 256
_MAX_ERROR: Final = 200
"""Characters of an error that tell it from others."""
BOUNDED: Final = {"is_bounded": True}
"""`extra` of a line at INFO that others cause as often as they like."""


@dataclass(slots=True)
class _Kind:
    began_s: float
    again: dict[str, int] = field(default_factory=dict)
    """By text that was written: how often it came again and was not."""
    num_others: int = 0
    """Left out as texts beyond the first ones."""


class BoundedHandler(logging.StreamHandler):  # type: ignore[type-arg]  # of stderr, which is text
    """A line about what was left out comes with the next line of any kind, a minute later or more, or at the end."""

    def __init__(self, clock: Clock = monotonic) -> None:
        super().__init__(sys.stderr)
        self._clock = clock
        self._kinds: OrderedDict[str, _Kind] = OrderedDict()
        """The longest open first."""

    def emit(self, record: logging.LogRecord) -> None:
        now_s = self._clock()
        while self._kinds and now_s - next(iter(self._kinds.values())).began_s >= WINDOW_S:
            self._end_window(now_s)
        if not _is_bounded(record) or self._is_new(record, now_s):
            super().emit(record)

    def close(self) -> None:
        """What is still owed is said."""
        for kind in list(self._kinds):
            self._say_left_out(kind, self._kinds.pop(kind))
        super().close()

    def _is_new(self, record: logging.LogRecord, now_s: float) -> bool:
        """Whether it is written; else it is counted."""
        name = str(record.msg)
        kind = self._kinds.get(name)
        if kind is None:
            if len(self._kinds) >= _MAX_KINDS:
                self._say_left_out(*self._kinds.popitem(last=False))
            kind = self._kinds[name] = _Kind(now_s)
        text = _text(record)
        if text in kind.again:
            kind.again[text] += 1
            return False
        if len(kind.again) >= MAX_TEXTS:
            kind.num_others += 1
            return False
        kind.again[text] = 0
        return True

    def _end_window(self, now_s: float) -> None:
        """The line that counts a text is its one line of the next minute."""
        name, kind = self._kinds.popitem(last=False)
        said = self._say_left_out(name, kind)
        if said:
            self._kinds[name] = _Kind(now_s, dict.fromkeys(said, 0))

    def _say_left_out(self, name: str, kind: _Kind) -> list[str]:
        """The texts that came again."""
        said = [text for text, count in kind.again.items() if count]
        for text in said:
            self._write(f"{text} again={kind.again[text]}")
        if kind.num_others:
            self._write(f"left out count={kind.num_others} like={name!r}")
        return said

    def _write(self, text: str) -> None:
        values = {"msg": text, "levelno": logging.WARNING, "levelname": "WARNING"}
        super().emit(logging.makeLogRecord(values))


def _is_bounded(record: logging.LogRecord) -> bool:
    if record.levelno >= logging.WARNING:
        return True
    return record.levelno >= logging.INFO and hasattr(record, "is_bounded")


def _text(record: logging.LogRecord) -> str:
    """With the error that came along: another one under the same words is not the same."""
    try:
        text = record.getMessage()
    except (TypeError, ValueError):  # told as a bug by whoever formats it
        text = str(record.msg)
    error = record.exc_info[1] if record.exc_info else None
    return text if error is None else f"{text} error={error!r:.{_MAX_ERROR}}"
