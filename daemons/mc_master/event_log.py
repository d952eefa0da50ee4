"""The recent past of the event stream: a bounded ring of what was published, for readers that missed some of it."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice, repeat

from daemons.core.ids import Incarnation
from daemons.protocol.base import Message
from daemons.protocol.event import PastEvent, ReadEvents, ReadEventsReply
from daemons.protocol.messages import encode

MAX_PAGE = 1000
_MAX_SCAN = 8192
"""Rows that one answer looks at, so that a rare topic does not hold up the loop."""


class EventLog:
    """Keeps the last `limit` events as they are: most are never asked for, so none is encoded before it is."""

    def __init__(
        self,
        publish: Callable[..., int],
        clock: Callable[[], float],
        *,
        limit: int,
    ) -> None:
        """`publish` numbers events, from 1 on without a gap, sends them to whoever listens, gives the last number."""
        self.newest = 0
        self._publish = publish
        self._clock = clock
        self._ring: deque[tuple[float, Message]] = deque(maxlen=limit)

    @property
    def oldest(self) -> int:
        """Number of the oldest event that is kept; one more than the newest while none was published."""
        return self.newest - len(self._ring) + 1

    def publish(self, *events: Message) -> None:
        self.newest = self._publish(*events)
        self._ring.extend(zip(repeat(self._clock()), events))

    def read(self, message: ReadEvents, incarnation: Incarnation) -> ReadEventsReply:
        topics = frozenset(message.topics)
        oldest, newest, now_s = self.oldest, self.newest, self._clock()
        first = max(oldest, message.first)
        if message.last is not None:
            first = self._first_of(message.last, topics)
        limit = min(max(1, message.limit), MAX_PAGE)
        found: list[PastEvent] = []
        following = first
        for at_s, event in self._from(first):
            if len(found) == limit:
                break
            sequence, following = following, following + 1
            if not topics or _topic(event) in topics:
                age_ms = max(0, int((now_s - at_s) * 1000))
                found.append(PastEvent(sequence=sequence, age_ms=age_ms, payload=encode(event)))
        return ReadEventsReply(
            incarnation=incarnation, events=found, oldest=oldest, newest=newest, next=following
        )

    def _first_of(self, num_events: int, topics: frozenset[str]) -> int:
        if not topics:
            return max(self.oldest, self.newest - max(0, num_events) + 1)
        left, first = num_events, self.newest + 1
        for _, event in reversed(self._ring):
            if left <= 0:
                break
            first -= 1
            left -= _topic(event) in topics
        return first

    def _from(self, first: int) -> Iterator[tuple[float, Message]]:
        skipped = min(first - self.oldest, len(self._ring))
        return islice(self._ring, skipped, skipped + _MAX_SCAN)


def _topic(event: Message) -> str:
    return type(event).__name__.lower()
