"""Lines appended to a file for each day (UTC). One that cannot be written is counted, not waited for."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from daemons.config.usage import day_of

log = logging.getLogger(__name__)

WallClock = Callable[[], float]


class DayFile:
    """Coroutines' thread. Raises OSError when nothing can be written there. `max_bytes` bounds one day; 0: nothing."""

    def __init__(
        self, path_of: Callable[[str], Path], wall: WallClock, *, what: str, max_bytes: int = 0
    ) -> None:
        """`path_of`: of a day; `what`: the lines, for the log."""
        self.wall = wall
        self.num_lost = 0
        self._path_of = path_of
        self._what = what
        self._max_bytes = max_bytes
        self._descriptor = -1
        self._num_bytes = 0
        self._open(day_of(wall()))

    def append(self, line: bytes) -> None:
        data = line + b"\n"
        try:
            self._open(day_of(self.wall()))
            is_full = 0 < self._max_bytes < self._num_bytes + len(data)
            num_written = 0 if is_full else os.write(self._descriptor, data)
            is_whole = num_written == len(data)
            why = "the file of this day is full" if is_full else "no space"
            if 0 < num_written < len(data):  # the next line would stand behind half of this one
                self._take_back(num_written)
        except OSError as error:
            is_whole, why = False, error.strerror or str(error)
        if is_whole:
            self._num_bytes += len(data)
            return
        if not self.num_lost:
            log.error("%s is lost why=%s", self._what, why)
        self.num_lost += 1

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self, day: str) -> None:
        descriptor = open_at(self._path_of(day), self._descriptor)
        if descriptor != self._descriptor:
            self._descriptor = descriptor
            self._num_bytes = os.fstat(descriptor).st_size

    def _take_back(self, num_written: int) -> None:
        """The last bytes that were written, where nobody wrote behind them: another gateway may, to the same file."""
        end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        if end == os.fstat(self._descriptor).st_size:
            os.ftruncate(self._descriptor, end - num_written)


def open_at(path: Path, before: int) -> int:
    """A descriptor of the file that is at `path` now; a new file where somebody has moved it away. `before`: the one
    that was in use, or -1; it is closed once another is there. Raises OSError, and then it stays open.
    """
    if before >= 0 and _is_at(before, path):
        return before
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o640)
    if before >= 0:
        os.close(before)
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
