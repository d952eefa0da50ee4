"""What each tenant used, appended to a file for each day. A line that cannot be written is counted, not waited for."""

import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from daemons.config.usage import UsageLine, day_of, encode_line, read_usage, usage_file
from daemons.core.errors import ConfigError

log = logging.getLogger(__name__)

WallClock = Callable[[], float]


class UsageLog:
    """Coroutines' thread. Raises ConfigError when nothing can be written there."""

    def __init__(self, directory: Path, wall: WallClock) -> None:
        self.wall = wall
        self.num_lost = 0
        self._directory = directory
        self._day = ""
        self._descriptor = -1
        self._used_before: Counter[str] = Counter()
        for line in read_usage(usage_file(directory, day_of(wall()))):
            self._used_before[line.tenant] += line.prompt_tokens + line.completion_tokens
        try:
            self._open(day_of(wall()))
        except OSError as error:
            raise ConfigError(
                f"`tenants.usage_dir`: cannot write in {directory}: {error.strerror}"
            ) from None

    def used_before(self, tenant: str) -> int:
        """Tokens of today that earlier lives of this gateway wrote down."""
        return self._used_before[tenant]

    def append(self, line: UsageLine) -> None:
        data = encode_line(line) + b"\n"
        try:
            self._open(day_of(self.wall()))
            is_whole = os.write(self._descriptor, data) == len(data)
        except OSError as error:
            is_whole = False
            if not self.num_lost:
                log.error("usage is lost why=%s", error.strerror)  # noqa: TRY400 - a full disk is no bug
        self.num_lost += not is_whole

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self, day: str) -> None:
        if day == self._day and self._descriptor >= 0:
            return
        self.close()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(usage_file(self._directory, day), flags, 0o640)
        self._day = day
