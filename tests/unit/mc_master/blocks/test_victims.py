"""When a node that fills up is told to free blocks, and how many."""

from types import SimpleNamespace
from typing import Any

import pytest

from daemons.client.synthetic_nodes import block_hash, sealed_block
from daemons.core.clock import ManualClock
from daemons.core.ids import Epoch, HostId, Incarnation, NodeId
from daemons.mc_master.blocks.victims import Victims
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.store.directory.directory import Directory
from daemons.store.eviction.pins import HARD, HeldPin

NODE, NUM_BLOCKS, LEASE_S = NodeId("n"), 10, 5.0
SIZE = sealed_block(0).length


class Bench:
    """A node with ten blocks, the first ones the oldest; it is full at 90 per cent and well again at 50."""

    def __init__(self, incarnation: int = 1) -> None:
        self.clock = ManualClock()
        self.directory = Directory()
        address = DataAddress(
            host_id=HostId("h"), unix_path="/u", tcp="127.0.0.1:1", epoch=Epoch(1)
        )
        region = RegionRef(address=address, region_id=1, size_bytes=1 << 30)
        self.directory.add_node(NODE, HostId("h"), region)
        for number in range(NUM_BLOCKS):
            packed = SealedBlocks.pack([sealed_block(1000 * number)])
            self.directory.record_sealed(NODE, packed, now_s=float(number))
        self.clock.advance(100.0)
        pool = SimpleNamespace(high_watermark=0.9, low_watermark=0.5, lease_s=LEASE_S)
        state: Any = SimpleNamespace(
            config=SimpleNamespace(pool=pool),
            directory=self.directory,
            incarnation=Incarnation(incarnation),
            started_s=100.0,
            now_s=self.clock,
        )
        self.victims = Victims(state)
        self.member: Any = SimpleNamespace(
            node=SimpleNamespace(node=NODE),
            capacity_bytes=NUM_BLOCKS * SIZE,
            used_bytes=0,
            is_evicting=False,
            next_eviction_s=0.0,
        )

    def oldest(self, used: int) -> int:
        """How many are chosen with so many blocks in use: those that were used longest ago."""
        self.member.used_bytes = used * SIZE
        chosen = self.victims.of(self.member)
        assert set(chosen) == {block_hash(1000 * number) for number in range(len(chosen))}
        return len(chosen)


@pytest.mark.parametrize(
    ("is_evicting", "used", "num_chosen"),
    [(False, 8, 0), (False, 9, 4), (True, 8, 3), (True, 6, 1), (True, 5, 0), (False, 10, 5)],
)
def test_a_node_is_full_at_the_high_watermark_and_frees_down_to_the_low_one(
    *, is_evicting: bool, used: int, num_chosen: int
) -> None:
    bench = Bench()
    bench.member.is_evicting = is_evicting
    assert bench.oldest(used) == num_chosen
    assert bench.member.is_evicting == (num_chosen > 0)


def test_what_a_node_was_told_to_free_is_not_told_at_once_again() -> None:
    bench = Bench()
    assert [bench.oldest(9), bench.oldest(9)] == [4, 0]


def test_leases_of_an_earlier_master_are_waited_out() -> None:
    bench = Bench(incarnation=2)
    assert bench.oldest(10) == 0
    bench.clock.advance(LEASE_S)
    assert bench.oldest(10) == 5


def test_a_node_whose_blocks_are_all_leased_says_so_until_it_is_well() -> None:
    bench = Bench()
    hashes = [block_hash(1000 * number) for number in range(NUM_BLOCKS)]
    bench.directory.locate(hashes, now_s=bench.clock(), lease_s=LEASE_S)
    assert bench.oldest(10) == 0
    assert bench.victims.held_back(NODE).leased_bytes == NUM_BLOCKS * SIZE
    bench.clock.advance(LEASE_S + 1)
    assert bench.oldest(10) == 5
    assert bench.victims.held_back(NODE).leased_bytes == 0


def test_what_stays_is_told_of_a_node_that_refused_for_want_of_slots_too() -> None:
    bench = Bench()
    last = block_hash(1000 * (NUM_BLOCKS - 1))
    bench.directory.pins.pin([last], HeldPin(HARD, 1000.0))
    assert bench.oldest(used=8) == 0
    assert bench.victims.held_back(NODE).pinned_bytes == 0
    bench.victims.look_at_refusal(bench.member)
    assert bench.victims.held_back(NODE).pinned_bytes == SIZE
    bench.oldest(used=4)
    assert bench.victims.held_back(NODE).pinned_bytes == 0
