"""What the answers that still run have used, in a file that is written anew every second: of a gateway that is killed
the next life counts them, all but that second. It is read from what the kernel holds, so nothing is synced.
"""

import itertools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from daemons.config.usage import UsageLine, encode_line, read_usage
from daemons.core.errors import ConfigError
from daemons.core.file_lock import CannotLock, FileLock, Refusal, lock_beside
from daemons.service.paths import NO_ROOM

log = logging.getLogger(__name__)

NOTE_S: Final = 1.0
MAX_WAITING_NOTED: Final = 4096
"""The oldest; to write more each second would hold up streams."""
KILLED: Final = 0
"""The status of a line that was taken from here: nobody was told how the answer ended."""

SoFar = Callable[[], UsageLine | None]
"""None as long as there is no token."""


class RunningUsage:
    """Coroutines' thread. An answer is left before its line is written: the file may name both, never less than one.

    Raises ConfigError where a gateway that lives writes this file: what it is giving would be counted twice.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = _lock(path)
        self._running: set[SoFar] = set()
        self._is_there = path.exists()
        self._is_failing = False

    def left_over(self) -> list[UsageLine]:
        """Of the life before, until `note` is called. Raises ConfigError."""
        return list(read_usage(self._path))

    def follow(self, so_far: SoFar) -> None:
        self._running.add(so_far)

    def leave(self, so_far: SoFar) -> None:
        self._running.discard(so_far)

    def note(self, waiting: Iterable[bytes] = ()) -> None:
        """Never raises: an answer is worth more than its note. `waiting`: lines of answers that have ended, for which
        there is no room yet.
        """
        running = [
            encode_line(line) + b"\n" for ask in self._running if (line := ask()) is not None
        ]
        try:
            self._write([*running, *itertools.islice(waiting, MAX_WAITING_NOTED)])
        except OSError as error:
            if not self._is_failing:
                log.error("usage is not noted in=%s why=%s", self._path, error.strerror)  # noqa: TRY400 - a full disk is no bug
            self._is_failing = True
            return
        self._is_failing = False

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _write(self, lines: list[bytes]) -> None:
        """Whole or not at all."""
        if lines:
            fresh = self._path.with_name(f".{self._path.name}.new")
            fresh.unlink(missing_ok=True)  # whatever it is
            with fresh.open("xb") as file:
                file.write(b"".join(lines))
            fresh.replace(self._path)
        elif self._is_there:
            self._path.unlink(missing_ok=True)
        self._is_there = bool(lines)


def _lock(path: Path) -> FileLock | None:
    """None where there is no room for its file."""
    refusal = Refusal(
        error=ConfigError,
        what=f"the usage of a gateway of this `node.id` in {path.parent}",
        next_step="stop it, or give this one its own `node.id`",
    )
    try:
        return FileLock(lock_beside(path), refusal)
    except CannotLock as error:
        if error.number in NO_ROOM:
            return None
        raise ConfigError(f"`tenants.usage_dir`: {error}") from None
