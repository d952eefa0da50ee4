"""What a master makes of a node's report: what it records, and what it lets the node free."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daemons.client.synthetic_nodes import block_hash, sealed_block
from daemons.conductor.conductor import Conductor
from daemons.conductor.membership import Membership
from daemons.conductor.prefill_placement import Tuning
from daemons.conductor.request_log import RequestLog
from daemons.config.mc_master import MasterConfig, PoolSection
from daemons.core.clock import ManualClock
from daemons.core.errors import NotFound, ProtocolError, Unavailable
from daemons.core.ids import Epoch, HostId, Incarnation, NodeId
from daemons.mc_master.blocks.handlers import BlockHandlers
from daemons.mc_master.metrics import MasterMetrics
from daemons.mc_master.names.keeper import NameKeeper
from daemons.mc_master.nodes.handlers import MembershipHandlers
from daemons.mc_master.state import MasterState, Outlets
from daemons.protocol.block import DeadName
from daemons.protocol.event import BlocksRemoved, BlocksStored
from daemons.protocol.node import NodeDescription
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report, ReportReply
from daemons.protocol.segment import DataAddress, RegionRef, SegmentDescription
from daemons.rpc import Loop
from daemons.store.directory.directory import Directory
from daemons.store.directory.names import COUNTER_BITS

NODE = NodeId("n")
SIZE = sealed_block(0).length


def region(number: int) -> RegionRef:
    address = DataAddress(host_id=HostId("h"), unix_path="/u", tcp="127.0.0.1:1", epoch=Epoch(1))
    return RegionRef(address=address, region_id=number, size_bytes=1 << 20)


def segment(number: int, at: RegionRef) -> SegmentDescription:
    return SegmentDescription(region=at, path="/s", capacity_bytes=1 << 20, number=number)


def description(*segments: SegmentDescription) -> NodeDescription:
    return NodeDescription(
        node=NODE,
        role="cachenode",
        host="h",
        host_id=HostId("h"),
        epoch=Epoch(1),
        control="tcp://127.0.0.1:1",
        pid=1,
        software="test",
        segments=list(segments),
    )


class Bench:
    """A master with one cache node; the test is that node."""

    def __init__(self, directory: Path, *segments: SegmentDescription) -> None:
        self.clock = ManualClock(100.0)
        self.loop = Loop(self.clock)
        self.published: list[Any] = []
        self.lived: list[int] = []
        out = Outlets(
            publish=lambda *events: self.published.extend(events),
            notify=lambda _member, _message: True,
            step_down=self.lived.append,
            greet=lambda _member: None,
        )
        self.state = MasterState(
            config=MasterConfig(pool=PoolSection(high_watermark=0.9, low_watermark=0.5)),
            incarnation=Incarnation(1),
            description=description(),
            loop=self.loop,
            out=out,
            events=SimpleNamespace(),  # type: ignore[arg-type]  # reports write none
            metrics=MasterMetrics(),
            membership=Membership(3, 6),
            directory=Directory(),
            conductor=Conductor(Tuning()),
            requests=RequestLog(10),
            started_s=0.0,
            directory_path=directory,
        )
        membership = MembershipHandlers(self.state)
        self.reports = BlockHandlers(self.state, membership, NameKeeper(self.state)).reports
        self.state.membership.join(description(*segments), peer=b"p", now_s=self.clock())
        self.member = self.state.membership[NODE]
        if segments:
            self.state.directory.add_node(NODE, HostId("h"), segments[0].region)

    def report(self, sequence: int, **fields: Any) -> ReportReply:
        numbers = fields.pop("sealed", ())
        report = Report(
            node=NODE,
            epoch=fields.pop("epoch", 1),
            sequence=sequence,
            sealed=SealedBlocks.pack([sealed_block(number) for number in numbers]),
            freed=[block_hash(number) for number in fields.pop("freed", ())],
            bad=[block_hash(number) for number in fields.pop("bad", ())],
            used_bytes=fields.pop("used_bytes", 0),
            capacity_bytes=10 * SIZE,
            **fields,
        )
        return self.reports.hear(SimpleNamespace(peer=b"p"), report)  # type: ignore[arg-type]

    def held(self, num_blocks: int = 20) -> list[int]:
        directory = self.state.directory
        return [n for n in range(num_blocks) if directory.versions_of(block_hash(n))]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, segment(0, region(1)))
    yield made
    made.state.directory.check_invariants()
    made.loop.close()


def test_what_is_sealed_is_there_and_what_is_freed_or_bad_is_told_apart(bench: Bench) -> None:
    bench.report(1, sealed=range(6))
    assert bench.held() == [0, 1, 2, 3, 4, 5]
    bench.report(2, freed=[5], bad=[4])
    assert bench.held() == [0, 1, 2, 3]
    assert [type(event) for event in bench.published] == [
        BlocksStored,
        BlocksRemoved,
        BlocksRemoved,
        BlocksStored,
    ]
    _, evicted, bad, _ = bench.published
    assert (evicted.why, evicted.hashes) == ("evicted", [block_hash(5)])
    assert (bad.why, bad.hashes) == ("bad", [block_hash(4)])


def test_a_block_that_is_freed_and_sealed_in_one_report_is_there(bench: Bench) -> None:
    bench.report(1, sealed=[0])
    bench.report(2, freed=[0], sealed=[0])
    assert bench.held() == [0]


def test_a_repeat_is_not_recorded_again_and_a_gap_voids_nothing_until_all_is_announced(
    bench: Bench,
) -> None:
    bench.report(1, sealed=range(3))
    bench.report(2, freed=[2])
    bench.report(2, freed=[1])
    assert bench.held() == [0, 1]
    assert bench.report(4, sealed=[7]).announce
    assert bench.held() == [0, 1], "readable until its announcement begins"
    assert not bench.report(1, sealed=[0, 9]).announce
    assert bench.held() == [0, 9]


def test_a_full_node_is_told_what_to_free_and_a_report_of_a_lower_tier_frees_nothing(
    bench: Bench,
) -> None:
    reply = bench.report(1, sealed=range(10), used_bytes=9 * SIZE)
    assert len(reply.victims) == 4
    lower = bench.report(2, sealed=range(10), used_bytes=10 * SIZE, tier="ssd")
    assert not lower.victims
    assert bench.member.tiers["ssd"].num_blocks == 10
    assert bench.member.used_bytes == 9 * SIZE, "that of DRAM"


def test_a_report_of_another_life_or_of_a_node_without_memory_is_refused(
    bench: Bench, tmp_path: Path
) -> None:
    with pytest.raises(Unavailable, match="join again"):
        bench.report(1, epoch=2)
    instance = Bench(tmp_path)
    with pytest.raises(NotFound, match="without a segment"):
        instance.report(1, sealed=[0])
    instance.loop.close()


def test_segments_that_are_mounted_later_are_known_and_the_first_one_stays(bench: Bench) -> None:
    bench.report(1)
    both = [segment(0, region(1)), segment(1, region(2))]
    bench.report(2, segments=both)
    assert bench.member.node.segments == both
    with pytest.raises(ProtocolError, match="first segment changed"):
        bench.report(3, segments=[segment(0, region(3))])


def test_higher_versions_than_this_master_gives_out_end_it(bench: Bench) -> None:
    later = DeadName(key=block_hash(0), version=(5 << COUNTER_BITS) + 1)
    with pytest.raises(Unavailable, match="a master of incarnation 5 gave out higher versions"):
        bench.report(1, sealed=[1], dead=[later])
    assert bench.lived == [5]
    assert bench.held() == []
