"""What an instance tells the master of its arena, against a scripted link: deltas, loss, announcements, clears."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from daemons.core.clock import ManualClock
from daemons.core.errors import Exhausted, McError, Unavailable
from daemons.core.ids import BlockHash, Epoch, NodeId
from daemons.protocol.block import BlockFilter, BlockMeta, FreeBlocks, RememberClear, SealedBlock
from daemons.protocol.report import Report, ReportReply
from daemons.rpc import Loop
from daemons.service import device_reports as module
from daemons.service.device_reports import DeviceReports, Instance


def name(index: int) -> BlockHash:
    return BlockHash(index.to_bytes(16, "big"))


class Arena:
    """Holds what the test says."""

    def __init__(self) -> None:
        self.held: dict[BlockHash, None] = {}
        self.cleared: list[tuple[BlockFilter, float]] = []

    def hashes(self) -> list[BlockHash]:
        return list(self.held)

    def describe(self, hashes: Iterable[BlockHash]) -> list[SealedBlock]:
        return [block(key) for key in hashes if key in self.held]

    def usage(self) -> tuple[int, int]:
        return 100 * len(self.held), 10_000

    def forget(self, hashes: Sequence[BlockHash]) -> None:
        for key in hashes:
            self.held.pop(key, None)

    def forget_ahead(self, wanted: BlockFilter, age_s: float) -> None:
        self.cleared.append((wanted, age_s))


def block(key: BlockHash) -> SealedBlock:
    meta = BlockMeta(hash=key, parent=key, namespace=b"", depth=0, num_tokens=1, model="m")
    return SealedBlock(
        meta=meta, offset=0, length=100, trailer_bytes=0, version=0, seal_checksum=0, num_layers=1
    )


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
        self.arena, self.link = Arena(), ScriptedLink()
        self.reports = DeviceReports(self.loop, Instance(NodeId("p"), Epoch(3)))
        self.reports.attach(self.link, self.arena)  # type: ignore[arg-type]  # what is used of it

    def seal(self, *indexes: int) -> None:
        self.arena.held |= dict.fromkeys(map(name, indexes))
        self.reports.sealed([name(index) for index in indexes])

    def free(self, *indexes: int) -> None:
        self.arena.forget([name(index) for index in indexes])
        self.reports.freed([name(index) for index in indexes])

    def answer(self, reply: ReportReply | McError) -> None:
        self.link.callbacks.pop(0)(reply)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.loop.run_once(0)

    def told(self) -> list[tuple[int, list[int], list[int]]]:
        """(number, sealed, freed) of the reports since this was asked last."""
        sent, self.link.sent = self.link.sent, []
        return [
            (
                report.sequence,
                [int.from_bytes(key, "big") for key in report.sealed.hashes()],
                [int.from_bytes(key, "big") for key in report.freed],
            )
            for report in sent
        ]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.reports.announce()
    assert made.told() == [(1, [], [])]
    made.answer(ReportReply())
    yield made
    made.loop.close()


def test_changes_are_told_together_one_report_at_a_time(bench: Bench) -> None:
    bench.seal(1, 2)
    bench.free(1)
    bench.seal(3)
    bench.pass_time(0.01)
    assert bench.told() == [(2, [2, 3], [1])]
    bench.free(2)
    bench.seal(2)
    bench.pass_time(0.01)
    assert bench.told() == []
    bench.answer(ReportReply())
    bench.pass_time(0.01)
    assert bench.told() == [(3, [2], [2])], (
        "freed first, then sealed again: a clear may wait for it"
    )


def test_a_lost_report_is_repeated_unless_all_was_announced_meanwhile(bench: Bench) -> None:
    bench.seal(1)
    bench.pass_time(0.01)
    assert bench.told() == [(2, [1], [])]
    for why in (Unavailable("away"), Exhausted("too many at once")):
        bench.answer(why)
        bench.pass_time(0.3)
        (repeat,) = bench.link.sent
        assert bench.told() == [(2, [1], [])]
    assert next(iter(repeat.sealed)).age_ms == 600, "as old as it is by now"
    bench.reports.announce()
    assert bench.told() == [(1, [1], [])]
    bench.answer(Unavailable("of the one before"))
    bench.answer(ReportReply())
    bench.pass_time(0.3)
    assert bench.told() == []


def test_a_master_that_lost_count_hears_all_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BLOCKS", 2)
    bench.seal(1, 2, 3)
    bench.pass_time(0.01)
    bench.answer(ReportReply(announce=True))
    bench.answer(ReportReply())
    bench.pass_time(0.01)
    assert bench.told() == [(2, [1, 2], []), (1, [1, 2], []), (2, [3], [])]


def test_what_was_cleared_is_forgotten_and_told_also_where_it_was_not_held(bench: Bench) -> None:
    bench.seal(1, 2)
    bench.reports.obey(RememberClear(filter=BlockFilter(model="m"), age_ms=1500))
    bench.reports.obey(RememberClear(filter=BlockFilter(node=NodeId("another")), age_ms=0))
    bench.reports.obey(FreeBlocks(hashes=[name(2), name(9)], is_deletion=True))
    bench.pass_time(0.01)
    assert bench.told() == [(2, [1], [2, 9])]
    bench.answer(ReportReply(unwanted=[name(1)]))
    assert bench.arena.held == {}
    # What was made from it meanwhile is not to stay either.
    unwanted = BlockFilter(hashes=(name(1),))
    assert bench.arena.cleared == [(BlockFilter(model="m"), 1.5), (unwanted, 0.0)]


def test_what_is_sealed_again_is_not_told_before_it_is_told_as_freed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BLOCKS", 2)
    bench.free(1, 2, 3)
    bench.seal(3, 4)
    bench.pass_time(0.01)
    bench.answer(ReportReply())
    bench.pass_time(0.01)
    assert bench.told() == [(2, [4], [1, 2]), (3, [3], [3])]
