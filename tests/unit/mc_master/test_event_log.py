"""The ring of recent events: bounded, numbered as published, read by page, by topic, from the end."""

from daemons.core.ids import Incarnation, NodeId
from daemons.mc_master.event_log import MAX_PAGE, EventLog
from daemons.protocol.event import ReadEvents, ReadEventsReply
from daemons.protocol.messages import decode_event
from daemons.protocol.node import NodeJoined, NodeLeft


class Stage:
    def __init__(self, limit: int) -> None:
        self.now_s = 100.0
        self.num_published = 0
        self.log = EventLog(self._publish, lambda: self.now_s, limit=limit)

    def _publish(self, _event: object) -> int:
        self.num_published += 1
        return self.num_published

    def join(self, number: int) -> None:
        self.log.publish(NodeJoined(node=NodeId(f"n{number}"), role="decode"))

    def leave(self, number: int) -> None:
        self.log.publish(NodeLeft(node=NodeId(f"n{number}"), role="decode", why=""))

    def read(self, **wanted: object) -> ReadEventsReply:
        return self.log.read(ReadEvents(**wanted), Incarnation(3))  # type: ignore[arg-type]


def names(reply: ReadEventsReply) -> list[tuple[int, str]]:
    return [(past.sequence, decode_event(past.payload).node) for past in reply.events]


def test_empty_log_says_that_nothing_was_published() -> None:
    reply = Stage(4).read()
    assert (reply.events, reply.oldest, reply.newest, reply.next) == ([], 1, 0, 1)
    assert reply.incarnation == 3


def test_full_ring_keeps_the_newest_in_order() -> None:
    stage = Stage(4)
    for number in range(1, 8):
        stage.join(number)
    reply = stage.read(first=2)
    assert names(reply) == [(4, "n4"), (5, "n5"), (6, "n6"), (7, "n7")]
    assert (reply.oldest, reply.newest, reply.next) == (4, 7, 8)
    assert names(stage.read(first=6)) == [(6, "n6"), (7, "n7")]
    assert stage.read(first=50).next == 50


def test_topic_is_chosen_and_pages_go_on_where_they_ended() -> None:
    stage = Stage(100)
    for number in range(1, 11):
        stage.join(number)
        stage.leave(number)
    first = stage.read(topics=["nodeleft"], limit=2)
    assert names(first) == [(2, "n1"), (4, "n2")]
    second = stage.read(topics=["nodeleft"], limit=2, first=first.next)
    assert names(second) == [(6, "n3"), (8, "n4")]
    assert names(stage.read(topics=["nodejoined"], last=2)) == [(17, "n9"), (19, "n10")]
    assert names(stage.read(last=2)) == [(19, "n10"), (20, "n10")]
    assert stage.read(last=0).events == []


def test_age_is_the_time_since_it_was_published() -> None:
    stage = Stage(4)
    stage.join(1)
    stage.now_s += 2.5
    stage.join(2)
    assert [past.age_ms for past in stage.read().events] == [2500, 0]


def test_a_page_and_the_rows_looked_at_are_bounded() -> None:
    stage = Stage(20_000)
    stage.leave(0)
    for number in range(20_000):
        stage.join(number)
    page = stage.read(limit=1 << 40)
    assert len(page.events) == MAX_PAGE
    rare = stage.read(topics=["nodeleft"])
    assert rare.events == []
    assert 1 < rare.next < rare.newest
