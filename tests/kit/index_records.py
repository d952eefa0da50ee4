"""Records for tests of the cache node's index."""

from daemons.core.ids import BlockHash
from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.store.index.format import IndexHeader, SealedRecord

HEADER = IndexHeader("node-a", 1 << 26, 1 << 22)


def sealed(number: int, offset: int | None = None) -> SealedRecord:
    block_hash = BlockHash(number.to_bytes(16, "big"))
    meta = BlockMeta(
        hash=block_hash,
        parent=block_hash,
        namespace=b"index-test",
        depth=number,
        num_tokens=64,
        model="m",
    )
    block = SealedBlock(
        meta=meta,
        offset=4096 * number if offset is None else offset,
        length=3840,
        trailer_bytes=96,
        version=1,
        seal_checksum=(number * 0x9E3779B97F4A7C15) % (1 << 64),
        num_layers=6,
    )
    return SealedRecord(block, 1_700_000_000 + number)
