"""Victims are chosen many at a time and named few at a time; what happens in between is not overlooked."""

from collections.abc import Sequence

from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.store.directory.directory import Directory
from daemons.store.eviction.pins import HARD, HeldPin
from daemons.store.eviction.victim_queue import MAX_AGE_S

NODE, BYTES, COUNT = NodeId("node"), 100, 40


def hash_of(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "big"))


def sealed(number: int) -> SealedBlock:
    meta = BlockMeta(
        hash=hash_of(number),
        parent=hash_of(10**9 + number),
        namespace=b"n",
        depth=0,
        num_tokens=1,
        model="m",
    )
    return SealedBlock(
        meta=meta,
        offset=number * BYTES,
        length=BYTES,
        trailer_bytes=1,
        version=1,
        seal_checksum=1,
        num_layers=1,
    )


def full_directory() -> Directory:
    """Block n was last used at second n."""
    directory = Directory()
    address = DataAddress(host_id=HostId("h"), unix_path="", tcp="h:1", epoch=Epoch(1))
    region = RegionRef(address=address, region_id=1, size_bytes=1 << 30)
    directory.add_node(NODE, HostId("h"), region)
    for number in range(COUNT):
        directory.record_sealed(NODE, SealedBlocks.pack([sealed(number)]), now_s=float(number))
    return directory


def name(directory: Directory, num_left: int, now_s: float) -> Sequence[BlockHash]:
    """Of all that should go, five at a time, which the node frees at once."""
    found = directory.victims(NODE, num_left * BYTES, now_s=now_s, max_blocks=5)
    directory.record_freed(NODE, found)
    directory.check_invariants()
    return found


def test_oldest_go_first_over_many_calls() -> None:
    directory = full_directory()
    found = [
        number for at in range(4) for number in name(directory, 20 - 5 * at, 100.0 + 0.01 * at)
    ]
    assert found == [hash_of(number) for number in range(20)]


def test_a_block_that_is_read_in_between_stays() -> None:
    directory = full_directory()
    name(directory, 20, 100.0)
    directory.locate([hash_of(6)], now_s=100.1, lease_s=1.0)
    assert name(directory, 15, 100.2) == [hash_of(number) for number in (5, 7, 8, 9, 10)]


def test_a_block_that_is_pinned_in_between_stays() -> None:
    directory = full_directory()
    name(directory, 20, 100.0)
    directory.pins.pin([hash_of(5)], HeldPin(HARD, 1e9))
    assert name(directory, 15, 100.2) == [hash_of(number) for number in range(6, 11)]


def test_a_row_that_was_freed_and_is_used_again_is_no_victim() -> None:
    directory = full_directory()
    name(directory, 20, 100.0)
    directory.record_freed(NODE, [hash_of(5)])
    directory.record_sealed(NODE, SealedBlocks.pack([sealed(500)]), now_s=100.1)
    assert name(directory, 15, 100.2) == [hash_of(number) for number in range(6, 11)]


def test_a_choice_is_not_used_for_ever() -> None:
    directory = full_directory()
    name(directory, 20, 100.0)
    directory.record_sealed(NODE, SealedBlocks.pack([sealed(500)]), now_s=1.0)
    assert hash_of(500) in name(directory, 15, 101.0 + MAX_AGE_S)
