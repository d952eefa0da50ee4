"""Whether the store is asked at all: one that fails rests, ever longer, so that nobody waits for it."""

import logging

from daemons.core.clock import Clock
from daemons.core.errors import Unavailable

log = logging.getLogger(__name__)


class StoreHealth:
    """Of reads or of writes. Guarded by the tier's lock."""

    def __init__(self, what: str, rest_s: tuple[float, float], clock: Clock) -> None:
        self._what = what
        self._first_s, self._most_s = rest_s
        self._clock = clock
        self._num_failures = 0
        """In a row."""
        self.resume_s = clock()
        self.why = ""

    @property
    def left_s(self) -> float:
        return max(0.0, self.resume_s - self._clock())

    @property
    def is_resting(self) -> bool:
        return self.left_s > 0

    def refuse_if_resting(self) -> None:
        """Raises Unavailable."""
        left_s = self.left_s
        if left_s > 0:
            raise Unavailable(self.why, retry_after_ms=int(left_s * 1000) + 1)

    def on_success(self) -> None:
        self._num_failures = 0

    def on_failure(self, why: str) -> None:
        """Those that fail together count once."""
        if self.is_resting:
            return
        rest_s = min(self._most_s, self._first_s * 2 ** min(self._num_failures, 30))
        self._num_failures += 1
        self.why = why
        self.resume_s = self._clock() + rest_s
        log.warning("object tier rests what=%s for_s=%g why=%s", self._what, rest_s, why)
