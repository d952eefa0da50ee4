"""What the answers that still run have used, in a file that is written anew every second: of a gateway that is killed
the next life counts them, all but that second. It is read from what the kernel holds, so nothing is synced.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from daemons.config.usage import UsageLine, encode_line, read_usage

log = logging.getLogger(__name__)

NOTE_S: Final = 1.0
KILLED: Final = 0
"""The status of a line that was taken from here: nobody was told how the answer ended."""

SoFar = Callable[[], UsageLine | None]
"""None as long as there is no token."""


class RunningUsage:
    """Coroutines' thread. An answer is left before its line is written: the file may name both, never less than one."""

    def __init__(self, path: Path) -> None:
        self._path = path
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

    def note(self) -> None:
        """Never raises: an answer is worth more than its note."""
        lines = [line for ask in self._running if (line := ask()) is not None]
        try:
            self._write(lines)
        except OSError as error:
            if not self._is_failing:
                log.error("usage is not noted in=%s why=%s", self._path, error.strerror)  # noqa: TRY400 - a full disk is no bug
            self._is_failing = True
            return
        self._is_failing = False

    async def run_forever(self) -> None:
        while True:
            await asyncio.sleep(NOTE_S)
            self.note()

    def _write(self, lines: list[UsageLine]) -> None:
        """Whole or not at all."""
        if lines:
            fresh = self._path.with_name(f".{self._path.name}.new")
            fresh.unlink(missing_ok=True)  # whatever it is
            with fresh.open("xb") as file:
                file.write(b"".join(encode_line(line) + b"\n" for line in lines))
            fresh.replace(self._path)
        elif self._is_there:
            self._path.unlink(missing_ok=True)
        self._is_there = bool(lines)
