"""How often blocks were read, by row: the same as counting by hash, and nothing left of a row's block before."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from daemons.core.ids import BlockHash, HostId, NodeId, new_epoch
from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.store.directory.directory import Directory
from daemons.store.eviction.use_counts import RowCounts

NODE = NodeId("n0")
LIMIT = 3


def block(number: int) -> BlockHash:
    return BlockHash(bytes([number]) * 16)


def sealed(number: int) -> SealedBlock:
    meta = BlockMeta(
        hash=block(number),
        parent=BlockHash(bytes(16)),
        namespace=b"n",
        depth=0,
        num_tokens=64,
        model="m",
    )
    return SealedBlock(
        meta=meta,
        offset=4096 * number,
        length=4096,
        trailer_bytes=64,
        version=1,
        seal_checksum=number,
        num_layers=1,
    )


def directory(*numbers: int) -> Directory:
    made = Directory()
    address = DataAddress(host_id=HostId("h"), unix_path="", tcp="", epoch=new_epoch())
    made.add_node(NODE, HostId("h"), RegionRef(address=address, region_id=1, size_bytes=1 << 20))
    made.record_sealed(NODE, SealedBlocks.pack(map(sealed, numbers)), now_s=0)
    return made


@given(st.lists(st.sets(st.integers(1, 6)), max_size=20))
def test_rows_count_as_hashes_do(requests: list[set[int]]) -> None:
    made, expected = directory(*range(1, 7)), Counter[BlockHash]()
    counts = RowCounts(made.blocks)
    for request in requests:
        hashes = [block(number) for number in sorted(request)]
        expected.update(hashes)
        steps = [(each, expected[each]) for each in hashes if expected[each] % LIMIT == 0]
        assert counts.use(made.blocks.find_all(hashes), LIMIT) == steps
    assert all(counts.of(block(number)) == expected[block(number)] for number in range(1, 7))
    counts.clear()
    assert counts.of(block(1)) == 0


def test_a_block_that_is_gone_has_no_uses_and_leaves_none_to_the_next_in_its_row() -> None:
    made = directory(1)
    counts = RowCounts(made.blocks)
    for _ in range(LIMIT):
        counts.use(made.blocks.find_all([block(1)]), 100)
    assert counts.of(block(1)) == LIMIT
    made.record_freed(NODE, [block(1)])
    assert counts.of(block(1)) == 0
    made.record_sealed(NODE, SealedBlocks.pack([sealed(2)]), now_s=1)
    assert counts.of(block(2)) == 0
