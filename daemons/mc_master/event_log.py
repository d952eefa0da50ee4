"""The recent past of the event stream: a bounded ring of what was published, for readers that missed some of it."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from daemons.core.ids import Incarnation
from daemons.protocol.base import Message
from daemons.protocol.event import PastEvent, ReadEvents, ReadEventsReply, part_of, size_of
from daemons.protocol.messages import encode

MAX_PAGE = 1000
_MAX_SCAN = 8192
"""Rows that one answer looks at, so that a rare topic does not hold up the loop."""


class _Kept(NamedTuple):
    first: int
    """Number of its first block."""
    size: int
    at_s: float
    event: Message


class EventLog:
    """Keeps the last `limit` numbers, and what else belongs to the oldest of these; most are never asked for, so none
    is encoded before it is.
    """

    def __init__(
        self,
        publish: Callable[[Message], int],
        clock: Callable[[], float],
        *,
        limit: int,
    ) -> None:
        """`publish` numbers events, from 1 on without a gap, sends them to whoever listens, gives the last number."""
        self.newest = 0
        self._publish = publish
        self._clock = clock
        self._limit = limit
        self._ring: deque[_Kept] = deque()

    @property
    def oldest(self) -> int:
        """The lowest number that is kept; one more than the newest while none was published."""
        return self._ring[0].first if self._ring else self.newest + 1

    def publish(self, event: Message) -> None:
        size = size_of(event)
        if not size:
            return
        self.newest = self._publish(event)
        self._ring.append(_Kept(self.newest - size + 1, size, self._clock(), event))
        last_needed = self.newest - self._limit + 1
        while self._ring[0].first + self._ring[0].size <= last_needed:
            self._ring.popleft()

    def read(self, message: ReadEvents, incarnation: Incarnation) -> ReadEventsReply:
        topics = frozenset(message.topics)
        oldest, newest, now_s = self.oldest, self.newest, self._clock()
        first = max(oldest, message.first)
        if message.last is not None:
            first = self._first_of(message.last, topics)
        left = min(max(1, message.limit), MAX_PAGE)
        found: list[PastEvent] = []
        following = first
        for kept in self._from(first):
            if not left:
                break
            start, following = following - kept.first, kept.first + kept.size
            if topics and _topic(kept.event) not in topics:
                continue
            stop = min(kept.size, start + left)
            left, following = left - (stop - start), kept.first + stop
            event = part_of(kept.event, start, stop) if stop - start < kept.size else kept.event
            age_ms = max(0, int((now_s - kept.at_s) * 1000))
            sequence = kept.first + start
            found.append(PastEvent(sequence=sequence, age_ms=age_ms, payload=encode(event)))
        return ReadEventsReply(
            incarnation=incarnation, events=found, oldest=oldest, newest=newest, next=following
        )

    def _first_of(self, num_events: int, topics: frozenset[str]) -> int:
        if not topics:
            return max(self.oldest, self.newest - max(0, num_events) + 1)
        left, first = num_events, self.newest + 1
        for kept in reversed(self._ring):
            if left <= 0:
                break
            first = kept.first
            if _topic(kept.event) in topics:
                first += max(0, kept.size - left)
                left -= kept.size
        return first

    def _from(self, first: int) -> Iterator[_Kept]:
        skipped = max(0, bisect_right(self._ring, first, key=lambda kept: kept.first) - 1)
        if self._ring and first > self.newest:
            skipped = len(self._ring)
        return islice(self._ring, skipped, skipped + _MAX_SCAN)


def _topic(event: Message) -> str:
    return type(event).__name__.lower()
