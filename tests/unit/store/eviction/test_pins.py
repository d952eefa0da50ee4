"""Pins in the directory: what is never a victim, what goes last, and for how long."""

import pytest

from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockFilter, BlockMeta, SealedBlock
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.prefix_hash import block_hashes, root_hash
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.store.directory.directory import Directory
from daemons.store.directory.listing import HeldBack, held_back, list_blocks
from daemons.store.directory.tenant_usage import held_by_tenant
from daemons.store.eviction.pins import HARD, MAX_PINS, SOFT, HeldPin

NAMESPACE = b"n" * 16
LENGTH = 100
N0, N1 = NodeId("n0"), NodeId("n1")


def chain(seed: int, num_blocks: int = 4) -> list[BlockHash]:
    return block_hashes(NAMESPACE, [seed * 1000 + i for i in range(num_blocks * 16)], 16)


def sealed(hashes: list[BlockHash]) -> list[SealedBlock]:
    parents = [root_hash(NAMESPACE), *hashes]
    return [
        SealedBlock(
            meta=BlockMeta(
                hash=block_hash,
                parent=parents[depth],
                namespace=NAMESPACE,
                depth=depth,
                num_tokens=16,
                model="m",
            ),
            offset=0,
            length=LENGTH,
            trailer_bytes=8,
            version=1,
            seal_checksum=9,
            num_layers=2,
        )
        for depth, block_hash in enumerate(hashes)
    ]


@pytest.fixture
def made() -> Directory:
    """Two prefixes of four blocks, the first the older."""
    directory = Directory()
    address = DataAddress(host_id=HostId("h"), unix_path="/u", tcp="127.0.0.1:1", epoch=Epoch(1))
    for node in (N0, N1):
        directory.add_node(
            node, HostId("h"), RegionRef(address=address, region_id=1, size_bytes=1 << 30)
        )
    directory.record_sealed(N0, SealedBlocks.pack(sealed(chain(1))), now_s=1)
    directory.record_sealed(N0, SealedBlocks.pack(sealed(chain(2))), now_s=2)
    return directory


def everything(directory: Directory, now_s: float) -> list[BlockHash]:
    return directory.victims(N0, 100 * LENGTH, now_s=now_s)


def test_a_hard_pin_holds_its_block_and_all_before_it(made: Directory) -> None:
    old, new = chain(1), chain(2)
    made.pins.pin([old[2]], HeldPin(HARD, 100.0))
    assert everything(made, 3) == [old[3], *reversed(new)]
    made.check_invariants()


def test_soft_pins_are_the_last_victims(made: Directory) -> None:
    old, new = chain(1), chain(2)
    made.pins.pin([old[1]], HeldPin(SOFT, 100.0))
    assert everything(made, 3) == [old[3], old[2], *reversed(new), old[1], old[0]]
    assert made.victims(N0, 2 * LENGTH, now_s=5) == [old[3], old[2]]


def test_a_pin_ends_with_its_time_and_when_told(made: Directory) -> None:
    old = chain(1)
    made.pins.pin([old[3]], HeldPin(HARD, 10.0))
    assert not set(everything(made, 9.9)) & set(old)
    assert set(old) <= set(everything(made, 11.1))
    made.pins.pin([old[3]], HeldPin(HARD, 100.0))
    assert made.pins.unpin([old[3], old[2]]) == [old[3]]
    assert set(old) <= set(everything(made, 13))
    assert len(made.pins) == 0


def test_the_firmest_and_longest_of_several_pins_holds(made: Directory) -> None:
    old = chain(1)
    made.pins.pin([old[3]], HeldPin(SOFT, 100.0))
    made.pins.pin([old[1]], HeldPin(HARD, 50.0))
    listed, _ = list_blocks(made, BlockFilter(), after=None, limit=10, now_s=10)
    shown = {block.meta.hash: (block.pin, block.pin_left_s) for block in listed}
    assert [shown[each] for each in old] == [("hard", 90.0)] * 2 + [("soft", 90.0)] * 2
    assert {shown[each] for each in chain(2)} == {("none", 0.0)}
    made.pins.unpin([old[3]])
    assert [pin.until_s for pin in made.pins.held(made.blocks, now_s=10).values()] == [50.0, 50.0]


def test_a_pin_outlives_its_blocks_and_rows_that_others_reuse(made: Directory) -> None:
    old = chain(1)
    made.pins.pin([old[3]], HeldPin(HARD, 100.0))
    made.record_freed(N0, old)
    made.record_sealed(N0, SealedBlocks.pack(sealed(chain(3))), now_s=3)
    assert set(everything(made, 4)) == {*chain(2), *chain(3)}
    made.record_sealed(N0, SealedBlocks.pack(sealed(old)[2:]), now_s=5)
    assert set(everything(made, 6)) == {*chain(2), *chain(3)}
    made.record_sealed(N0, SealedBlocks.pack(sealed(old)[:2]), now_s=7)
    assert not set(everything(made, 8)) & set(old), "what closes the gap is held too"


def test_changes_are_counted_for_those_who_are_told(made: Directory) -> None:
    old = chain(1)
    made.pins.pin([old[3]], HeldPin(HARD, 100.0))
    assert len(made.pins.held(made.blocks, now_s=2)) == 4
    before = made.pins.num_changes
    made.record_sealed(N0, SealedBlocks.pack(sealed(chain(5))), now_s=3)
    assert made.pins.num_changes == before
    made.record_sealed(N1, SealedBlocks.pack(sealed(old)), now_s=3)
    assert made.pins.num_changes > before


def test_time_in_which_nobody_could_renew_ends_no_pin_and_brings_none_back(
    made: Directory,
) -> None:
    old, new = chain(1), chain(2)
    made.pins.pin([old[3]], HeldPin(HARD, 10.0))
    made.pins.pin([new[3]], HeldPin(HARD, 3.0))
    made.pins.extend(30.0, now_s=35.0)
    assert set(everything(made, 39.9)) == set(new)
    assert set(old) <= set(everything(made, 41.2))


def test_there_are_not_too_many(made: Directory) -> None:
    hashes = [BlockHash(number.to_bytes(16, "big")) for number in range(MAX_PINS)]
    made.pins.pin(hashes, HeldPin(SOFT, 100.0))
    made.pins.pin(hashes[:5], HeldPin(HARD, 100.0))
    with pytest.raises(Exhausted, match="last block of a prefix"):
        made.pins.pin([chain(1)[0]], HeldPin(SOFT, 100.0))
    assert len(made.pins) == MAX_PINS


def test_what_stays_is_counted_by_reason(made: Directory) -> None:
    old, new = chain(1), chain(2)
    made.pins.pin([old[3]], HeldPin(HARD, 100.0))
    made.match(new[:2], now_s=3, lease_s=5)
    made.match(old[:1], now_s=3, lease_s=5)
    assert held_back(made, N0, now_s=4) == HeldBack(2 * LENGTH, 4 * LENGTH)
    [held] = held_by_tenant(made, now_s=4).values()
    assert (held.leased_bytes, held.pinned_bytes) == (2 * LENGTH, 4 * LENGTH)
    assert held_back(made, N1, now_s=4) == HeldBack(0, 0)
    assert held_back(made, NodeId("nobody"), now_s=4) == HeldBack(0, 0)
