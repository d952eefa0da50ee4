"""Whether a disk or a store is asked at all: one that fails rests, so that nobody waits for it."""

import logging
from dataclasses import dataclass

from daemons.core.clock import Clock
from daemons.core.errors import Unavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rest:
    """After `num_failures` in a row it rests `first_s`, after each further rest for twice as long, up to `most_s`."""

    first_s: float
    most_s: float
    num_failures: int = 1


class TierHealth:
    """Of its reads or its writes. Guarded by the tier's lock."""

    def __init__(self, what: str, rest: Rest, clock: Clock) -> None:
        self._what = what
        self._rest = rest
        self._clock = clock
        self._num_failures = 0
        self._num_rests = 0
        """Since something last worked."""
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
        self._num_failures = self._num_rests = 0

    def on_failure(self, why: str) -> None:
        """Those that fail together count once."""
        if self.is_resting:
            return
        self._num_failures += 1
        if self._num_failures < self._rest.num_failures:
            return
        rest_s = min(self._rest.most_s, self._rest.first_s * 2 ** min(self._num_rests, 30))
        self._num_failures = 0
        self._num_rests += 1
        self.why = why
        self.resume_s = self._clock() + rest_s
        log.warning("lower tier rests what=%s for_s=%g why=%s", self._what, rest_s, why)
