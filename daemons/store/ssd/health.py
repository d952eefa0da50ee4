"""Whether the disk is asked at all: one that fails again and again rests, so that nobody waits for it."""

import logging

from daemons.core.clock import Clock
from daemons.core.errors import Unavailable

log = logging.getLogger(__name__)

_MAX_READ_ERRORS = 8
"""In a row: one bad sector is no dead disk."""


class DiskHealth:
    """Of its reads or its writes: one failed write is enough. Guarded by the tier's lock."""

    def __init__(self, what: str, rest_s: float, clock: Clock) -> None:
        self._what = what
        self.rest_s = rest_s
        self.why = ""
        self.resume_s = clock()
        self._clock = clock
        self._num_read_errors = 0

    @property
    def is_resting(self) -> bool:
        return self._clock() < self.resume_s

    def refuse_if_resting(self) -> None:
        """Raises Unavailable."""
        left_s = self.resume_s - self._clock()
        if left_s > 0:
            raise Unavailable(self.why, retry_after_ms=int(left_s * 1000) + 1)

    def rest(self, why: str) -> None:
        log.error("ssd tier rests what=%s for_s=%g why=%s", self._what, self.rest_s, why)
        self.why = why
        self.resume_s = self._clock() + self.rest_s

    def on_read(self) -> None:
        self._num_read_errors = 0

    def on_read_error(self, why: str) -> None:
        self._num_read_errors += 1
        if self._num_read_errors >= _MAX_READ_ERRORS:
            self._num_read_errors = 0
            self.rest(why)
