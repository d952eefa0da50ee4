"""The cache node's reports against a scripted link: order, loss, repetition, announcements."""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest

from daemons.core.clock import ManualClock
from daemons.core.errors import McError, NotFound, ProtocolError, Unavailable
from daemons.core.ids import BlockHash, Epoch, Incarnation, NodeId
from daemons.mc_cachenode import reporter as module
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.mc_cachenode.reporter import Reporter
from daemons.protocol.block import BlockMeta, DeadName, SealedBlock, Tombstone
from daemons.protocol.report import Report, ReportReply
from daemons.rpc import Loop
from daemons.store.segment.segment import Segment


class ScriptedLink:
    """Keeps what was sent; the test answers."""

    def __init__(self) -> None:
        self.is_joined = False
        self.incarnation = Incarnation(1)
        self.sent: list[Report] = []
        self.callbacks: list[Callable[[Any], object]] = []

    def ask(self, report: Report, *, timeout_s: float, on_reply: Callable[[Any], object]) -> None:
        assert timeout_s > 0
        self.sent.append(report)
        self.callbacks.append(on_reply)

    def answer(self, reply: ReportReply | McError) -> None:
        self.callbacks.pop(0)(reply)


def meta_of(block_hash: BlockHash) -> BlockMeta:
    return BlockMeta(
        hash=block_hash, parent=block_hash, namespace=b"", depth=0, num_tokens=1, model="m"
    )


class Bench:
    def __init__(self, *lower: "Below") -> None:
        self.clock = ManualClock()
        self.loop = Loop(self.clock)
        self.replicas = ReplicaTable(Segment.create(8 << 20))
        self.victims: list[BlockHash] = []
        self.reporter = Reporter(
            self.loop,
            [self.replicas, *lower],
            (NodeId("n"), Epoch(3)),
            0.005,
            lambda reply: self.victims.extend(reply.victims),
        )
        self.link = ScriptedLink()
        self.reporter.attach(self.link)  # type: ignore[arg-type]  # what the reporter uses of it

    def join(self) -> None:
        self.link.is_joined = True
        self.reporter.announce()

    def seal(self) -> BlockHash:
        return self.seal_again(BlockHash(os.urandom(16)))

    def seal_again(self, block_hash: BlockHash) -> BlockHash:
        self.replicas.seal(self.replicas.begin(meta_of(block_hash), 100, 1), 7)
        self.reporter.sealed(block_hash)
        return block_hash

    def free(self, block_hash: BlockHash) -> None:
        assert self.replicas.free(block_hash)
        self.reporter.freed(block_hash)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.loop.run_once(0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.loop.close()


def sealed_in(report: Report) -> list[BlockHash]:
    return [block.meta.hash for block in report.sealed]


def test_events_are_batched_and_numbered(bench: Bench) -> None:
    bench.join()
    bench.link.answer(ReportReply())
    hashes = [bench.seal() for _ in range(3)]
    bench.free(hashes[1])
    assert len(bench.link.sent) == 1
    bench.pass_time(0.006)
    first, second = bench.link.sent
    assert (first.sequence, sealed_in(first), first.freed) == (1, [], [])
    assert (second.sequence, second.freed) == (2, [hashes[1]])
    assert sealed_in(second) == [hashes[0], hashes[2]]
    assert second.used_bytes == 2 * 4096
    assert not bench.reporter.is_idle
    bench.link.answer(ReportReply(victims=[hashes[0]]))
    assert bench.victims == [hashes[0]]
    assert bench.reporter.is_idle


def test_what_the_master_has_not_answered_for_is_news_to_it(bench: Bench) -> None:
    told = bench.seal()
    bench.join()
    assert bench.reporter.is_news(told)
    bench.link.answer(ReportReply())
    assert not bench.reporter.is_news(told)
    fresh = bench.seal()
    assert bench.reporter.is_news(fresh)
    bench.pass_time(0.006)
    later = bench.seal()
    assert [bench.reporter.is_news(each) for each in (told, fresh, later)] == [False, True, True]
    bench.reporter.announce()
    assert bench.reporter.is_news(later), "whatever is said before the announcement is of before"
    bench.link.callbacks.clear()
    bench.reporter.announce()
    bench.link.answer(ReportReply())
    assert not any(bench.reporter.is_news(each) for each in (told, fresh, later))


def test_one_report_is_in_flight_and_a_lost_reply_repeats_it(bench: Bench) -> None:
    bench.join()
    bench.link.answer(ReportReply())
    first = bench.seal()
    bench.pass_time(0.006)
    second = bench.seal()
    bench.pass_time(0.006)
    assert len(bench.link.sent) == 2
    bench.link.answer(Unavailable("lost"))
    bench.pass_time(0.25)
    (lost,), (repeat,) = bench.link.sent[1].sealed, bench.link.sent[2].sealed
    assert msgspec.structs.replace(repeat, age_ms=lost.age_ms) == lost
    assert repeat.age_ms == lost.age_ms + 256, "as old as it is by now"
    assert sealed_in(bench.link.sent[2]) == [first]
    bench.link.answer(ReportReply())
    bench.pass_time(0.006)
    assert sealed_in(bench.link.sent[3]) == [second]
    assert bench.link.sent[3].sequence == bench.link.sent[2].sequence + 1


def test_a_master_is_told_while_a_tier_is_not_open_and_when_it_is(bench: Bench) -> None:
    is_open = False
    bench.reporter.knows_all = lambda: is_open
    bench.join()
    bench.link.answer(ReportReply())
    bench.reporter.refresh()
    bench.pass_time(0.006)
    assert [report.is_opening for report in bench.link.sent] == [True]
    is_open = True
    bench.reporter.refresh()
    bench.pass_time(0.006)
    assert [report.is_opening for report in bench.link.sent] == [True, False]


def test_a_new_master_gets_everything_in_bounded_batches(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BLOCKS", 4)
    hashes = [bench.seal() for _ in range(10)]
    bench.pass_time(0.006)
    assert bench.link.sent == []
    bench.join()
    bench.free(hashes[9])
    late = bench.seal()
    while bench.link.callbacks:
        bench.link.answer(ReportReply())
        bench.pass_time(0.006)
    told = [block for report in bench.link.sent for block in sealed_in(report)]
    assert [report.sequence for report in bench.link.sent] == [1, 2, 3]
    assert told == [*hashes[:9], late]
    assert any(hashes[9] in report.freed for report in bench.link.sent)
    assert all(len(report.sealed) <= 4 for report in bench.link.sent)


def test_an_answer_of_an_earlier_life_means_nothing(bench: Bench) -> None:
    bench.join()
    block_hash = bench.seal()
    bench.reporter.announce()
    assert [report.sequence for report in bench.link.sent] == [1, 1]
    bench.link.answer(ReportReply(victims=[block_hash], announce=True))
    assert bench.victims == []
    assert len(bench.link.sent) == 2
    bench.link.answer(ReportReply(announce=True))
    assert len(bench.link.sent) == 3
    assert (bench.link.sent[2].sequence, sealed_in(bench.link.sent[2])) == (1, [block_hash])


def test_what_the_master_refuses_is_not_sent_again_as_it_was(bench: Bench) -> None:
    """All is announced anew, at first after a second, then ever more rarely."""
    bench.join()
    bench.link.answer(ReportReply())
    block_hash = bench.seal()
    bench.pass_time(0.006)
    assert len(bench.link.sent) == 2
    for delay_s in (1.0, 2.0, 4.0):
        before = len(bench.link.sent)
        bench.link.answer(ProtocolError("malformed"))
        bench.pass_time(delay_s - 0.01)
        assert len(bench.link.sent) == before
        bench.pass_time(0.02)
        assert len(bench.link.sent) == before + 1
        assert (bench.link.sent[-1].sequence, sealed_in(bench.link.sent[-1])) == (1, [block_hash])
    for _ in range(20):
        bench.link.answer(NotFound("joined without a segment"))
        bench.pass_time(60.1)
    bench.link.answer(ReportReply())
    assert bench.reporter.is_idle
    bench.seal()
    bench.pass_time(0.006)
    bench.link.answer(ProtocolError("malformed"))
    before = len(bench.link.sent)
    bench.pass_time(1.01)
    assert len(bench.link.sent) == before + 1, "a success in between begins the count anew"


def test_bad_blocks_are_told_apart(bench: Bench) -> None:
    bench.join()
    hashes = [bench.seal() for _ in range(2)]
    bench.link.answer(ReportReply())
    bench.pass_time(0.006)
    bench.link.answer(ReportReply())
    for block_hash, is_bad in zip(hashes, (True, False), strict=True):
        assert bench.replicas.free(block_hash)
        bench.reporter.freed(block_hash, is_bad=is_bad)
    bench.pass_time(0.006)
    assert (bench.link.sent[-1].bad, bench.link.sent[-1].freed) == ([hashes[0]], [hashes[1]])


def test_a_refusal_is_told_at_once(bench: Bench) -> None:
    bench.join()
    bench.link.answer(ReportReply())
    bench.reporter.refused(3)
    bench.pass_time(0.006)
    assert bench.link.sent[1].refused_puts == 3


def test_what_is_sealed_again_is_not_told_before_it_is_told_as_freed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master takes the frees of a report first: a later one would take the block for gone."""
    monkeypatch.setattr(module, "MAX_BLOCKS", 2)
    bench.join()
    bench.link.answer(ReportReply())
    gone = [bench.seal() for _ in range(3)]
    for block_hash in gone:
        bench.free(block_hash)
    fresh = bench.seal()
    bench.seal_again(gone[2])
    for _ in range(2):
        bench.pass_time(0.006)
        bench.link.answer(ReportReply())
    first, second = bench.link.sent[1:]
    assert (sealed_in(first), first.freed) == ([fresh], gone[:2])
    assert (sealed_in(second), second.freed) == ([gone[2]], gone[2:])


def test_what_is_announced_was_not_freed_and_sealed_again_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BLOCKS", 2)
    hashes = [bench.seal() for _ in range(5)]
    bench.join()  # two are told
    for block_hash in hashes[2:]:
        bench.free(block_hash)
    bench.seal_again(hashes[4])
    told = dict.fromkeys(sealed_in(bench.link.sent[0]))
    while bench.link.callbacks:
        bench.link.answer(ReportReply())
        bench.pass_time(0.006)
    for report in bench.link.sent[1:]:
        for block_hash in report.freed:
            told.pop(block_hash, None)
        told |= dict.fromkeys(sealed_in(report))
    assert list(told) == [hashes[0], hashes[1], hashes[4]]


class Below:
    """An SSD of names alone."""

    tier = "ssd"

    def hashes(self) -> list[BlockHash]:
        return []

    def report(self, hashes: Iterable[BlockHash]) -> list[SealedBlock]:
        return [
            SealedBlock(
                meta=meta_of(each),
                offset=0,
                length=100,
                trailer_bytes=8,
                version=1,
                seal_checksum=1,
                num_layers=1,
            )
            for each in hashes
        ]

    def usage(self) -> tuple[int, int]:
        return 0, 1 << 30

    def read_bytes_per_s(self) -> int:
        return 0

    def flush(self) -> None:
        return

    def tombstones(self) -> list[Tombstone]:
        return []

    def dead_names(self) -> list[DeadName]:
        return []


@pytest.fixture
def tiered() -> Iterator[Bench]:
    made = Bench(Below())
    yield made
    made.loop.close()


def test_a_tier_that_always_has_news_silences_none(tiered: Bench) -> None:
    """Every report of the SSD finds more that was written since."""
    tiered.join()
    waiting = tiered.seal()
    for _ in range(6):
        tiered.reporter.sealed(BlockHash(os.urandom(16)), "ssd")
        tiered.link.answer(ReportReply())
        tiered.pass_time(0.006)
    told = [report.tier for report in tiered.link.sent]
    assert told.count("ssd") >= 2
    assert waiting in [each for report in tiered.link.sent[:4] for each in sealed_in(report)]


def test_what_moves_down_is_told_as_there_before_it_is_told_as_gone(
    tiered: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BLOCKS", 2)
    tiered.join()
    moved = [tiered.seal() for _ in range(5)]
    for block_hash in moved:
        tiered.reporter.sealed(block_hash, "ssd")
        tiered.free(block_hash)
    while tiered.link.callbacks:
        tiered.link.answer(ReportReply())
        tiered.pass_time(0.006)
    below: set[BlockHash] = set()
    gone: list[BlockHash] = []
    for report in tiered.link.sent:
        if report.tier == "ssd":
            below.update(sealed_in(report))
        assert below.issuperset(report.freed)
        gone += report.freed
    assert gone == moved
    assert tiered.reporter.is_idle
