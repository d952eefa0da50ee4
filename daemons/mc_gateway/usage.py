"""What each tenant used, appended to a file for each day. A line that cannot be written now waits for room, up to a
bound; nobody's answer does.
"""

import asyncio
import logging
import os
from collections import Counter, deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Final

from daemons.config.usage import UsageLine, day_of, encode_line, read_usage, usage_file
from daemons.core.errors import ConfigError
from daemons.mc_gateway.day_file import WallClock, open_at
from daemons.mc_gateway.running_usage import NOTE_S, RunningUsage
from daemons.service.paths import NO_ROOM

log = logging.getLogger(__name__)

MAX_WAITING: Final = 65_536
"""Lines, some 300 bytes each; beyond it the oldest are lost."""
RETRY_S: Final = 5.0
_DAY_LENGTH: Final = len("2026-11-30")


class UsageLog:
    """Coroutines' thread. Raises ConfigError when nothing can be written there, though there may be room."""

    def __init__(self, directory: Path, wall: WallClock, gateway: str) -> None:
        self.wall = wall
        self.num_lost = 0
        self.running = RunningUsage(directory / f"running-{gateway}.jsonl")
        self._directory = directory
        self._waiting: deque[tuple[str, bytes]] = deque()
        """Day and line; the oldest first."""
        self._is_failing = False
        self._descriptor = -1
        self._is_torn = False
        """What was written last has no end: the next line must not be its continuation."""
        self._today = day_of(wall())
        self._used_today: Counter[str] = Counter()
        for line in read_usage(usage_file(directory, self._today)):
            self._count(line)
        try:
            self._open(self._today)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise ConfigError(
                    f"`tenants.usage_dir`: cannot write in {directory}: {error.strerror}"
                ) from None
            log.error("usage waits for room in=%s why=%s", directory, error.strerror)  # noqa: TRY400 - no bug
            self._is_failing = True
        self._take_over(self.running.left_over())

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def used(self, tenant: str, day: str) -> int:
        """Tokens of answers that have ended, those of earlier lives of this gateway too; 0 for any day but today."""
        return self._used_today[tenant] if day == self._today else 0

    def append(self, line: UsageLine) -> None:
        day = day_of(self.wall())
        if day != self._today:
            self._today, self._used_today = day, Counter()
        self._put(day, line)
        self.flush()

    def flush(self) -> None:
        """Write what waits, as far as there is room."""
        try:
            while self._waiting:
                self._write(*self._waiting[0])
                self._waiting.popleft()
        except OSError as error:
            if not self._is_failing:
                log.error("usage waits for room in=%s why=%s", self._directory, error.strerror)  # noqa: TRY400 - a full disk is no bug
            self._is_failing = True
            return
        if self._is_failing:
            log.info("usage is written again in=%s lost=%d", self._directory, self.num_lost)
        self._is_failing = False

    def jobs(self) -> list[Coroutine[None, None, None]]:
        return [self.run_forever(), self._note_forever()]

    async def run_forever(self) -> None:
        """Where nothing more comes, what waits is written all the same."""
        while True:
            await asyncio.sleep(RETRY_S)
            self.flush()

    def note(self) -> None:
        """For a life after a kill: what runs, and what waits for room."""
        self.running.note(data for _, data in self._waiting)

    async def _note_forever(self) -> None:
        while True:
            await asyncio.sleep(NOTE_S)
            self.note()

    def close(self) -> None:
        self.flush()
        self.note()
        if self._waiting:
            log.error("usage is lost lines=%d in=%s", len(self._waiting), self._directory)
        self.running.close()
        self._close_file()

    def _take_over(self, lines: list[UsageLine]) -> None:
        """Of answers that a life before was giving; those that had ended have their line already."""
        if not lines:
            return
        since = usage_file(self._directory, min(line.time for line in lines)[:_DAY_LENGTH]).name
        files = [
            path
            for path in self._directory.glob(usage_file(Path(), "*").name)
            if path.name >= since
        ]
        ended = {line.request for path in files for line in read_usage(path)}
        cut = [line for line in lines if line.request not in ended]
        for line in cut:
            self._put(line.time[:_DAY_LENGTH], line)
        self.flush()
        if cut:
            log.warning("usage of a life that was killed is counted answers=%d", len(cut))

    def _put(self, day: str, line: UsageLine) -> None:
        if day == self._today:
            self._count(line)
        if len(self._waiting) == MAX_WAITING:
            self._waiting.popleft()
            self.num_lost += 1
        self._waiting.append((day, encode_line(line) + b"\n"))

    def _count(self, line: UsageLine) -> None:
        self._used_today[line.tenant] += line.prompt_tokens + line.completion_tokens

    def _write(self, day: str, data: bytes) -> None:
        """Raises OSError, also where only a part of it went out."""
        self._open(day)
        whole = b"\n" + data if self._is_torn else data
        num_written = os.write(self._descriptor, whole)
        self._is_torn = whole[num_written - 1 : num_written] != b"\n"
        if num_written < len(whole):
            num_written += os.write(self._descriptor, whole[num_written:])  # says why
            self._is_torn = num_written < len(whole)
        if self._is_torn:
            raise OSError(0, "only a part of a line was written")

    def _open(self, day: str) -> None:
        descriptor = open_at(usage_file(self._directory, day), self._descriptor)
        if descriptor != self._descriptor:
            self._descriptor = descriptor
            size = os.fstat(descriptor).st_size
            self._is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
