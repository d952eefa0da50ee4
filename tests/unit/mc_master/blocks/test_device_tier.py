"""What a master makes of reports of KV arenas: numbered, in two minds about clears, gone with their node."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from daemons.conductor.membership import Member, Membership
from daemons.core.clock import ManualClock
from daemons.core.errors import ProtocolError
from daemons.core.ids import BlockHash, Epoch, HostId, Incarnation, NodeId
from daemons.mc_master.blocks.clearing import Clearing
from daemons.mc_master.blocks.device_tier import DeviceTier
from daemons.protocol.block import BlockFilter, BlockMeta, FreeBlocks, RememberClear, SealedBlock
from daemons.protocol.cache import ClearBlocks, ClearBlocksReply
from daemons.protocol.event import BlocksRemoved, BlocksStored
from daemons.protocol.node import ModelDescription, NodeDescription
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report, ReportReply
from daemons.rpc import Loop
from daemons.store.directory.device_index import DeviceIndex
from daemons.store.directory.directory import Directory

MODEL = ModelDescription(
    name="m",
    namespace=bytes(16),
    dtype="float32",
    block_tokens=16,
    chunk_tokens=64,
    max_context_tokens=4096,
    num_layers=2,
    num_kv_heads=1,
    head_dim=8,
    vocab_size=100,
    eos_token_ids=[0],
    is_reuse_safe=True,
)
A = NodeId("a")


def name(index: int) -> BlockHash:
    return BlockHash(index.to_bytes(16, "big"))


def sealed(*indexes: int, tenant: str = "", age_ms: int = 0) -> SealedBlocks:
    return SealedBlocks.pack(
        SealedBlock(
            meta=BlockMeta(
                hash=name(index),
                parent=name(index + 100),
                namespace=bytes(16),
                depth=index,
                num_tokens=16,
                model="m",
                tenant=tenant,
            ),
            offset=0,
            length=50,
            trailer_bytes=0,
            version=0,
            seal_checksum=0,
            num_layers=2,
            age_ms=age_ms,
        )
        for index in indexes
    )


class Call:
    """A clear that is asked for."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.answer_by_s = deadline_s - 0.05
        self.replies: list[ClearBlocksReply] = []

    def reply(self, reply: ClearBlocksReply) -> None:
        self.replies.append(reply)


class Bench:
    """A master with one instance, "a"; the test is that instance."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.loop = Loop(self.clock)
        self.events: list[Any] = []
        self.notices: list[Any] = []
        self.index = DeviceIndex()
        self.membership = Membership(3, 6)
        self.state = SimpleNamespace(
            directory=Directory(),
            devices=self.index,
            membership=self.membership,
            loop=self.loop,
            now_s=self.clock,
            incarnation=Incarnation(1),
            out=SimpleNamespace(publish=self.events.append, notify=self._notify),
        )
        self.clearing = Clearing(self.state)  # type: ignore[arg-type]  # what it uses of a state
        self.tier = DeviceTier(self.state, self.clearing)  # type: ignore[arg-type]
        self.member = self.join()

    def join(self, epoch: int = 1, model: ModelDescription | None = MODEL) -> Member:
        node = NodeDescription(
            node=A,
            role="prefill",
            host="h",
            host_id=HostId("h"),
            epoch=Epoch(epoch),
            control="tcp://127.0.0.1:1",
            pid=1,
            software="test",
            model=model,
        )
        self.membership.join(node, peer=b"p", now_s=self.clock())
        self.clearing.on_joined(self.membership[A])
        return self.membership[A]

    def report(
        self, sequence: int, new: SealedBlocks | None = None, freed: tuple[int, ...] = ()
    ) -> ReportReply:
        report = Report(
            node=A,
            epoch=1,
            sequence=sequence,
            sealed=new or SealedBlocks(),
            freed=[name(index) for index in freed],
            used_bytes=7,
            capacity_bytes=9,
            tier="device",
        )
        return self.tier.report(self.member, report)

    def clear(self, **fields: Any) -> Call:
        call = Call(self.clock() + 10)
        self.clearing.start(call, ClearBlocks(filter=BlockFilter(**fields)))  # type: ignore[arg-type]
        return call

    def held(self) -> list[int]:
        found = self.index.select(BlockFilter(node=A), now_s=self.clock())
        return sorted(int.from_bytes(key, "big") for key in found)

    def told(self) -> list[Any]:
        notices, self.notices = self.notices, []
        return notices

    def _notify(self, _: Member, notice: Any) -> bool:
        self.notices.append(notice)
        return True


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.index.check_invariants()
    made.loop.close()


def test_reports_are_recorded_once_in_order_and_lost_ones_are_asked_for(bench: Bench) -> None:
    bench.report(1, sealed(1, 2))
    bench.report(2, sealed(3), freed=(1,))
    bench.report(2, sealed(3), freed=(1,))
    assert (bench.held(), bench.index.num_on(A)) == ([2, 3], 2)
    assert bench.report(4, sealed(5)) == ReportReply(announce=True)
    assert bench.held() == [2, 3], "until it announces"
    assert bench.report(5, sealed(6)) == ReportReply()
    assert bench.held() == [6]
    bench.report(1, sealed(7))
    assert bench.held() == [7]
    usage = bench.member.tiers["device"]
    assert (usage.num_blocks, usage.used_bytes, usage.capacity_bytes) == (1, 7, 9)
    assert {event.node for event in bench.events} == {A}
    (new, gone) = BlocksStored, BlocksRemoved
    assert [type(event) for event in bench.events] == [new, gone, new, gone, new, gone, new]


def test_a_node_that_serves_no_model_has_no_arena(bench: Bench) -> None:
    bench.member = bench.join(model=None)
    with pytest.raises(ProtocolError, match="serves no model"):
        bench.report(1, sealed(1))


def test_nothing_stays_of_a_life_that_has_ended(bench: Bench) -> None:
    bench.report(1, sealed(1, 2))
    bench.tier.on_gone(A)
    assert (bench.held(), len(bench.index)) == ([], 0)
    assert bench.events[-1].why == "node_left"


def test_a_clear_waits_for_the_instance_and_for_nothing_else_of_it(bench: Bench) -> None:
    bench.report(1, SealedBlocks.pack([*sealed(1, 2, tenant="t"), *sealed(3)]))
    call = bench.clear(tenant="t")
    remember, free = bench.told()
    assert isinstance(remember, RememberClear)
    assert isinstance(free, FreeBlocks)
    assert sorted(free.hashes) == [name(1), name(2)]
    bench.report(2, freed=(1,))
    assert not call.replies
    bench.clock.advance(1)
    # One that was made again at once is told as freed all the same, and then as new.
    bench.report(3, sealed(2, tenant="t"), freed=(2,))
    assert call.replies == [ClearBlocksReply(num_cleared=2, num_left=0, cleared_bytes=100)]
    assert bench.held() == [2, 3]


def test_a_clear_does_not_wait_for_one_that_starts_again(bench: Bench) -> None:
    bench.report(1, sealed(1, 2))
    call = bench.clear()
    bench.report(1, sealed(3))
    assert call.replies == [ClearBlocksReply(num_cleared=0, num_left=2)]


def test_what_was_cleared_while_its_report_was_lost_is_not_wanted(bench: Bench) -> None:
    """Also where the answer that says so was lost: the repeat is answered alike."""
    bench.clock.advance(10)
    bench.report(1)
    bench.clear()
    bench.clock.advance(2)
    late = SealedBlocks.pack([*sealed(1, age_ms=3000), *sealed(2, age_ms=1000)])
    assert bench.report(2, late) == ReportReply(unwanted=[name(1)])
    assert bench.report(2, late) == ReportReply(unwanted=[name(1)])
    assert bench.held() == [2]


def test_an_instance_that_joins_hears_of_clears_that_its_prompts_may_be_older_than(
    bench: Bench,
) -> None:
    bench.clear(model="m")
    bench.clock.advance(5)
    bench.told()
    bench.join()
    assert bench.told() == [RememberClear(filter=BlockFilter(model="m"), age_ms=5000)]
    bench.clock.advance(10_000)
    bench.join()
    assert bench.told() == []
