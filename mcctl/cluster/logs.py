"""Log files of a local cluster: their last lines, and what is added to them."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from mcctl.cluster.record import DaemonRecord

_POLL_S: Final = 0.1
_TAIL_BYTES: Final = 1 << 20
"""Looked at for the last lines; a log that has longer ones shows fewer."""
_MAX_LINE: Final = 1 << 16


class LogFile:
    """Read on from where it was left; one that is shorter than that was begun anew."""

    def __init__(self, daemon: DaemonRecord) -> None:
        self.name = daemon.name
        self._path = Path(daemon.log)
        self._offset = 0
        self._rest = b""

    def tail(self, num_lines: int) -> list[str]:
        """Its last lines; `added` goes on after them."""
        size = self._size()
        self._offset = max(0, size - _TAIL_BYTES)
        lines = self.added()
        if self._offset > _TAIL_BYTES:
            lines = lines[1:]  # it began in the middle
        return lines[-num_lines:] if num_lines else []

    def added(self) -> list[str]:
        """Whole lines since the last call; a line without an end is kept until it has one, or is too long."""
        if self._size() < self._offset:
            self._offset, self._rest = 0, b""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                got = file.read(_TAIL_BYTES)
        except OSError:
            return []
        self._offset += len(got)
        *lines, self._rest = (self._rest + got).split(b"\n")
        if len(self._rest) > _MAX_LINE:
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode("utf-8", "replace") for line in lines]

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0


def last_lines(files: Sequence[LogFile], num_lines: int) -> list[tuple[str, str]]:
    """(daemon, line): the last of each. Of one second those of one daemon stay together."""
    found = [(file.name, line) for file in files for line in file.tail(num_lines)]
    return found if len(files) == 1 else sorted(found, key=lambda pair: pair[1][:8])


def follow(files: Sequence[LogFile], ends_s: float | None) -> Iterator[tuple[str, str]]:
    """(daemon, line) as they come, until `ends_s` of the monotonic clock."""
    while ends_s is None or time.monotonic() < ends_s:
        is_quiet = True
        for file in files:
            for line in file.added():
                is_quiet = False
                yield file.name, line
        if is_quiet:
            time.sleep(_POLL_S)
