"""Reports in order, against a scripted link: what is lost, refused, asked for again, and what comes too late."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from daemons.core.clock import ManualClock
from daemons.core.errors import Exhausted, McError, NotFound, ProtocolError, Unavailable
from daemons.core.ids import BlockHash, Epoch, NodeId
from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report, ReportReply
from daemons.rpc import Loop
from daemons.service.report_stream import ReportStream

INTERVAL_S = 0.005


def sealed(number: int) -> SealedBlocks:
    """A block of age 1 ms; none for 0."""
    key = BlockHash(number.to_bytes(16, "big"))
    meta = BlockMeta(hash=key, parent=key, namespace=b"", depth=0, num_tokens=1, model="m")
    block = SealedBlock(
        meta=meta,
        offset=0,
        length=100,
        trailer_bytes=0,
        version=0,
        seal_checksum=0,
        num_layers=1,
        age_ms=1,
    )
    return SealedBlocks.pack([block] if number else [])


class Numbers:
    """News are numbers, one a report; an announcement tells those it knew before again."""

    def __init__(self) -> None:
        self.known: list[int] = []
        self.untold: list[int] = []
        self.num_announcing = 0
        self.heard: list[tuple[int, ReportReply]] = []

    def has_news(self) -> bool:
        return bool(self.untold)

    def is_announcing(self) -> bool:
        return self.num_announcing > 0

    def restart(self) -> None:
        self.untold = list(self.known)
        self.num_announcing = len(self.known)

    def next_report(self, sequence: int) -> Report:
        number = self.untold.pop(0) if self.untold else 0
        self.num_announcing = max(0, self.num_announcing - 1)
        return Report(
            node=NodeId("n"),
            epoch=Epoch(1),
            sequence=sequence,
            sealed=sealed(number),
            freed=[],
            used_bytes=number,
            capacity_bytes=0,
        )

    def on_heard(self, report: Report, reply: ReportReply) -> None:
        self.heard.append((report.sequence, reply))


class ScriptedLink:
    """Keeps what was sent; the test answers."""

    def __init__(self) -> None:
        self.is_joined = True
        self.sent: list[Report] = []
        self.callbacks: list[Callable[[Any], object]] = []

    def ask(self, report: Report, *, timeout_s: float, on_reply: Callable[[Any], object]) -> None:
        assert timeout_s > 0
        self.sent.append(report)
        self.callbacks.append(on_reply)


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.loop = Loop(self.clock)
        self.news, self.link = Numbers(), ScriptedLink()
        self.stream = ReportStream(self.loop, INTERVAL_S, self.news)
        self.stream.attach(self.link)  # type: ignore[arg-type]  # what is used of it

    def tell(self, number: int) -> None:
        self.news.known.append(number)
        self.news.untold.append(number)
        self.stream.schedule()

    def answer(self, reply: ReportReply | McError) -> None:
        self.link.callbacks.pop(0)(reply)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.loop.run_once(0)

    def told(self) -> list[tuple[int, int]]:
        """(sequence, number) of what was sent since this was asked last."""
        sent, self.link.sent = self.link.sent, []
        return [(report.sequence, report.used_bytes) for report in sent]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.loop.close()


def test_news_wait_for_the_interval_and_for_the_answer_before(bench: Bench) -> None:
    bench.tell(7)
    bench.tell(8)
    assert bench.told() == []
    bench.pass_time(INTERVAL_S)
    bench.pass_time(1.0)
    assert bench.told() == [(1, 7)]
    assert bench.stream.is_unanswered
    reply = ReportReply()
    bench.answer(reply)
    assert bench.news.heard == [(1, reply)]
    assert not bench.stream.is_unanswered
    bench.pass_time(INTERVAL_S)
    assert bench.told() == [(2, 8)]


def test_nothing_is_sent_where_the_news_went_away_meanwhile(bench: Bench) -> None:
    bench.tell(7)
    bench.news.untold.clear()
    bench.pass_time(INTERVAL_S)
    assert bench.told() == []


@pytest.mark.parametrize("why", [Unavailable("away"), Exhausted("full")])
def test_what_was_not_heard_is_said_again_as_old_as_it_is_by_now(
    bench: Bench, why: McError
) -> None:
    """A clear in the meantime is of what was sealed before it."""
    bench.tell(7)
    bench.pass_time(INTERVAL_S)
    bench.clock.advance(2.0)
    bench.answer(why)
    bench.tell(8)
    bench.pass_time(0.25)
    bench.answer(why)
    bench.pass_time(0.25)
    assert [block.age_ms for report in bench.link.sent for block in report.sealed] == [
        1,
        2251,
        2501,
    ]
    assert bench.told() == [(1, 7)] * 3


def test_a_report_of_no_block_is_repeated_too(bench: Bench) -> None:
    bench.stream.announce()
    bench.answer(Unavailable("away"))
    bench.pass_time(0.25)
    assert bench.told() == [(1, 0), (1, 0)]


def test_a_lost_report_is_void_once_all_was_announced(bench: Bench) -> None:
    bench.tell(7)
    bench.pass_time(INTERVAL_S)
    bench.answer(Unavailable("away"))
    bench.stream.announce()
    bench.pass_time(0.25)
    assert bench.told() == [(1, 7), (1, 7)]
    bench.answer(ReportReply())
    bench.pass_time(0.25)
    assert bench.told() == []


def test_an_answer_to_an_earlier_announcement_means_nothing(bench: Bench) -> None:
    bench.tell(7)
    bench.stream.announce()
    bench.stream.announce()
    assert bench.told() == [(1, 7), (1, 7)]
    bench.answer(ReportReply(announce=True))
    assert bench.told() == []
    assert bench.stream.is_unanswered
    assert bench.news.heard == []


def test_an_announcement_goes_on_without_a_pause_and_is_asked_for_by_the_master(
    bench: Bench,
) -> None:
    for number in (7, 8, 9):
        bench.tell(number)
    bench.pass_time(INTERVAL_S)
    bench.answer(ReportReply(announce=True))
    bench.answer(ReportReply())
    bench.answer(ReportReply())
    assert bench.told() == [(1, 7), (1, 7), (2, 8), (3, 9)]
    assert [sequence for sequence, _ in bench.news.heard] == [1, 2]


def test_what_is_refused_is_announced_anew_ever_more_rarely_until_one_is_heard(
    bench: Bench,
) -> None:
    bench.tell(7)
    bench.pass_time(INTERVAL_S)
    assert bench.told() == [(1, 7)]
    for delay_s in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        bench.answer(ProtocolError("malformed"))
        bench.pass_time(delay_s - 0.01)
        assert bench.told() == []
        bench.pass_time(0.02)
        assert bench.told() == [(1, 7)]
    bench.answer(ReportReply())
    bench.tell(8)
    bench.pass_time(INTERVAL_S)
    bench.answer(NotFound("forgotten"))
    bench.told()
    bench.pass_time(1.01)
    assert bench.told() == [(1, 7)]


def test_without_a_master_nothing_is_sent(bench: Bench) -> None:
    bench.link.is_joined = False
    bench.tell(7)
    bench.pass_time(INTERVAL_S)
    bench.stream.announce()
    assert bench.told() == []
