"""Who goes in a node that has room, but none in slots of the size that is wanted."""

import msgspec
import pytest

from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Shortage
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.store.directory.directory import RENAME_AFTER_S, Directory
from daemons.store.eviction.pins import HARD, SOFT, HeldPin

NODE, PAGE, NOW_S = NodeId("node"), 4096, 100.0
TRAILER = 100


def hash_of(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "big"))


def made(*pages: int) -> Directory:
    """Block n takes so many pages and was last used at second n."""
    directory = Directory()
    address = DataAddress(host_id=HostId("h"), unix_path="", tcp="h:1", epoch=Epoch(1))
    region = RegionRef(address=address, region_id=1, size_bytes=1 << 30)
    directory.add_node(NODE, HostId("h"), region)
    for number, num_pages in enumerate(pages):
        block = SealedBlock(
            meta=BlockMeta(
                hash=hash_of(number),
                parent=hash_of(10**9 + number),
                namespace=b"n",
                depth=0,
                num_tokens=1,
                model="m",
            ),
            offset=number * PAGE,
            length=num_pages * PAGE - TRAILER,
            trailer_bytes=TRAILER,
            version=1,
            seal_checksum=1,
            num_layers=1,
        )
        directory.record_sealed(NODE, SealedBlocks.pack([block]), now_s=float(number))
    return directory


def chosen(
    directory: Directory, *slabs: list[int], pages: int = 2, num: int = 1, now_s: float = NOW_S
) -> list[int]:
    shortage = Shortage(
        slot_bytes=pages * PAGE,
        num_slots=num,
        slabs=[[hash_of(number) for number in slab] for slab in slabs],
    )
    found = directory.fitting_victims(NODE, shortage, now_s=now_s, max_blocks=100)
    directory.check_invariants()
    return [int.from_bytes(each, "big") for each in found]


def test_only_those_of_the_size_go_the_least_recently_used_first() -> None:
    directory = made(1, 2, 1, 2, 3, 2)
    assert chosen(directory, num=2) == [1, 3]
    assert chosen(directory, num=2) == [5], "those that were named just now are on their way"
    assert chosen(directory, num=9, now_s=NOW_S + RENAME_AFTER_S) == [1, 3, 5]
    assert chosen(directory, pages=4) == []


def test_leased_and_pinned_ones_stay() -> None:
    directory = made(2, 2, 2, 2)
    directory.locate([hash_of(0)], now_s=NOW_S, lease_s=5.0)
    directory.pins.pin([hash_of(1)], HeldPin(HARD, 1000.0))
    directory.pins.pin([hash_of(2)], HeldPin(SOFT, 1000.0))
    assert chosen(directory, num=4) == [3, 2]


def test_a_slab_that_is_colder_goes_whole() -> None:
    assert chosen(made(1, 1, 2, 2), [0, 1]) == [0, 1]
    assert chosen(made(1, 2, 1, 2), [0, 2]) == [1], "its last one was used after what fits"
    assert chosen(made(1, 1, 3, 3, 2), [2, 3], [0, 1]) == [0, 1], "the coldest of them"
    assert chosen(made(1, 1), [0, 1]) == [0, 1], "there is nothing of the size"


@pytest.mark.parametrize("level", [SOFT, HARD])
def test_of_a_slab_all_go_or_none(level: int) -> None:
    leased = made(1, 1, 2)
    leased.locate([hash_of(1)], now_s=NOW_S, lease_s=5.0)
    assert chosen(leased, [0, 1]) == [2]
    pinned = made(1, 1, 2)
    pinned.pins.pin([hash_of(1)], HeldPin(level, 1000.0))
    assert chosen(pinned, [0, 1]) == [2]
    assert chosen(made(1, 1, 2), [0, 7]) == [2], "one that the master has not heard of is new"


def test_what_is_pinned_softly_stays_before_a_slab_that_is_not() -> None:
    directory = made(2, 1, 1)
    directory.pins.pin([hash_of(0)], HeldPin(SOFT, 1000.0))
    assert chosen(directory, [1, 2]) == [1, 2]


def test_a_block_of_the_same_size_with_another_trailer_fits() -> None:
    directory = made(2)
    block = SealedBlock(
        meta=BlockMeta(
            hash=hash_of(5), parent=hash_of(6), namespace=b"n", depth=0, num_tokens=1, model="m"
        ),
        offset=0,
        length=PAGE,
        trailer_bytes=8,
        version=1,
        seal_checksum=1,
        num_layers=1,
    )
    longer = msgspec.structs.replace(
        block, length=2 * PAGE, meta=msgspec.structs.replace(block.meta, hash=hash_of(7))
    )
    directory.record_sealed(NODE, SealedBlocks.pack([block, longer]), now_s=50.0)
    assert chosen(directory, num=3) == [0, 5]
