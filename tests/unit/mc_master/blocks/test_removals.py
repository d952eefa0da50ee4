"""What is told of replicas that went: gone, or moved to another node or a lower tier of the same."""

from types import SimpleNamespace
from typing import Any

import pytest

from daemons.client.synthetic_nodes import block_hash, sealed_block
from daemons.core.ids import BlockHash, Epoch, HostId, Incarnation, NodeId
from daemons.mc_master.blocks.removals import Removals
from daemons.mc_master.metrics import MasterMetrics
from daemons.protocol.block import RemovalReason
from daemons.protocol.event import BlocksMoved, BlocksRemoved
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.store.directory.directory import Directory
from daemons.store.directory.slot_table import Place

HERE, THERE = NodeId("here"), NodeId("there")
DRAM: Place = (HERE, "dram")
HASHES = [block_hash(number) for number in range(3)]


class Bench:
    """Blocks 0 to 2 were here; 1 is at another node since, 2 in this node's SSD."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.moved_to: dict[tuple[NodeId, BlockHash], NodeId] = {(HERE, HASHES[1]): THERE}
        directory = Directory()
        for node in (HERE, THERE):
            address = DataAddress(
                host_id=HostId(node), unix_path="/u", tcp="127.0.0.1:1", epoch=Epoch(1)
            )
            region = RegionRef(address=address, region_id=1, size_bytes=1 << 30)
            directory.add_node(node, HostId(node), region)
        directory.add_tier(HERE, "ssd")
        directory.record_sealed(THERE, SealedBlocks.pack([sealed_block(1)]), now_s=0)
        directory.record_sealed(HERE, SealedBlocks.pack([sealed_block(2)]), now_s=0, tier="ssd")
        self.state: Any = SimpleNamespace(
            directory=directory,
            moved_to=self.moved_to,
            incarnation=Incarnation(1),
            metrics=MasterMetrics(),
            out=SimpleNamespace(publish=self.events.append),
            num_cleared=0,
            num_evicted=0,
        )
        self.tell = Removals(self.state).tell  # type: ignore[arg-type]  # what it uses of a state


def test_what_was_evicted_and_is_elsewhere_has_moved() -> None:
    bench = Bench()
    bench.tell(DRAM, HASHES, "evicted")
    moves = [event for event in bench.events if isinstance(event, BlocksMoved)]
    assert [(event.hashes, event.node, event.tier) for event in moves] == [
        ([HASHES[1]], THERE, "dram"),
        ([HASHES[2]], HERE, "ssd"),
    ]
    assert all((event.from_node, event.from_tier) == DRAM for event in moves)
    [gone] = [event for event in bench.events if isinstance(event, BlocksRemoved)]
    assert (gone.hashes, gone.node, gone.why) == ([HASHES[0]], HERE, "evicted")
    assert bench.state.num_evicted == 3
    assert not bench.moved_to, "it was told"


@pytest.mark.parametrize("why", ["cleared", "bad", "node_left"])
def test_what_went_for_another_reason_is_gone_wherever_else_it_is(why: RemovalReason) -> None:
    bench = Bench()
    bench.tell(DRAM, HASHES, why)
    [event] = bench.events
    assert (event.hashes, event.why) == (HASHES, why)
    assert bench.state.num_cleared == (3 if why == "cleared" else 0)
    assert bench.state.num_evicted == 0


def test_nothing_is_told_of_nothing() -> None:
    bench = Bench()
    bench.tell(DRAM, [], "evicted")
    assert bench.events == []
