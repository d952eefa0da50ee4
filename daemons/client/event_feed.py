"""The master's events in order and without holes: the recent past, then what comes, each once.

What the reader was too slow for is asked for again; what the master no longer keeps, and the start of another
master, is reported as `Resync`: whoever keeps a state of its own has to read it anew.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from daemons.client.cluster import ClusterClient
from daemons.core.errors import Unavailable
from daemons.protocol.event import (
    Event,
    ReadEvents,
    ReadEventsReply,
    SingleEvent,
    singles_of,
    size_of,
)
from daemons.rpc import Published, Subscriber, event_or_none

CHECK_S = 1.0
"""After so much silence the master is asked: the last event may be the one that was lost, or it is another master."""


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """One event, and how long ago the master published it."""

    sequence: int
    event: SingleEvent
    age_s: float


@dataclass(frozen=True, slots=True)
class Resync:
    """`num_missed` is None where nobody can know."""

    why: str
    num_missed: int | None
    incarnation: int


Item = SeenEvent | Resync


class EventFeed:
    """Listens from the start on, so that nothing falls between the past and the present. One thread; `close` it.

    Of topics, lower-case names of events, none means all.
    """

    def __init__(self, client: ClusterClient, endpoint: str, topics: tuple[str, ...] = ()) -> None:
        self.why_away = ""
        """Why the master cannot be asked just now; empty while it can."""
        self._client = client
        self._topics = topics
        self._incarnation = 0
        self._last = 0
        """All events up to this one are dealt with."""
        # Of one topic a reader can tell what it missed, and of all; of some it cannot.
        pair = client.identity.pair if client.identity is not None else None
        self._subscriber = Subscriber(endpoint, topics if len(topics) == 1 else (), pair)

    def since(self, first: int, incarnation: int | None = None) -> Iterator[Item]:
        """From this number on, of the master's life that numbered it so."""
        self._incarnation = incarnation or 0
        self._last = max(0, first - 1)
        yield from self._catch_up()

    def latest(self, num_events: int) -> Iterator[Item]:
        """The last so many."""
        page = self._ask(ReadEvents(last=num_events, topics=list(self._topics)))
        self._incarnation = page.incarnation
        yield from self._take(page)
        if page.next <= page.newest:
            yield from self._catch_up()

    def follow(self, poll_s: float) -> Iterator[Item | None]:
        """Without end; None whenever nothing came for `poll_s`."""
        if not self._incarnation:
            self._start_now()
        heard_s = time.monotonic()
        while True:
            for published in self._subscriber.events(poll_s):
                heard_s = time.monotonic()
                yield from self._hear(published)
            if time.monotonic() - heard_s >= CHECK_S:
                yield from self._while_reachable(self._catch_up)
                heard_s = time.monotonic()
            yield None

    def close(self) -> None:
        self._subscriber.close()

    def _start_now(self) -> None:
        page = self._ask(ReadEvents(last=0))
        self._incarnation, self._last = page.incarnation, page.newest

    def _hear(self, published: Published) -> Iterator[Item]:
        event = published.event
        other = event is not None and event.incarnation not in (0, self._incarnation)
        if not other and published.sequence <= self._last:
            return
        before = published.previous if len(self._topics) == 1 else published.sequence - 1
        if other or before > self._last:
            yield from self._while_reachable(self._catch_up)
            return
        self._last = published.sequence + (size_of(event) if event is not None else 1) - 1
        if event is not None and self._is_wanted(event):
            yield from _seen(published.sequence, event, 0.0)

    def _catch_up(self) -> Iterator[Item]:
        """All that was published by now after the last one dealt with."""
        while True:
            page = self._ask(ReadEvents(first=self._last + 1, topics=list(self._topics)))
            if self._incarnation not in (0, page.incarnation):
                yield Resync("another master: numbers begin anew", None, page.incarnation)
                self._incarnation, self._last = page.incarnation, 0
                continue
            self._incarnation = page.incarnation
            if self._last > page.newest:
                yield Resync(f"the newest event is {page.newest}", None, page.incarnation)
                self._last = page.newest
                return
            if page.oldest > self._last + 1:
                num_missed = page.oldest - self._last - 1
                yield Resync("the master no longer keeps them", num_missed, page.incarnation)
            yield from self._take(page)
            if page.next > page.newest:
                return

    def _take(self, page: ReadEventsReply) -> Iterator[SeenEvent]:
        self._last = page.next - 1
        for past in page.events:
            event = event_or_none(past.payload)
            if event is not None:
                yield from _seen(past.sequence, event, past.age_ms / 1000)

    def _while_reachable(self, read: Callable[[], Iterator[Item]]) -> Iterator[Item]:
        try:
            yield from read()
        except Unavailable as error:
            self.why_away = error.message
        else:
            self.why_away = ""

    def _ask(self, wanted: ReadEvents) -> ReadEventsReply:
        return self._client.read_events(wanted)

    def _is_wanted(self, event: Event) -> bool:
        return not self._topics or type(event).__name__.lower() in self._topics


def _seen(first: int, event: Event, age_s: float) -> Iterator[SeenEvent]:
    """A block each."""
    for sequence, single in enumerate(singles_of(event), first):
        yield SeenEvent(sequence, single, age_s)
