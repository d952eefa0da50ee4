"""Blocks whose bytes follow from their name and version."""

from hashlib import blake2b
from random import Random

from unit.store.ssd.crash_disk import aligned_copy

from daemons.core.ids import BlockHash
from daemons.protocol.block import BlockMeta
from daemons.store.lower import BlockRecord
from daemons.store.segment.seal import Trailer, layer_checksums, seal


def key(number: int) -> BlockHash:
    return BlockHash(blake2b(number.to_bytes(8, "little"), digest_size=16).digest())


def make_block(
    number: int,
    *,
    version: int = 1,
    layer_bytes: int = 512,
    num_layers: int = 2,
    namespace: bytes = b"ns",
) -> tuple[BlockRecord, memoryview]:
    """The record, and payload with trailer in page-aligned memory. One in four has a name of its own."""
    length = layer_bytes * num_layers
    payload = Random(number * 1000 + version).randbytes(length)
    checksums = layer_checksums(memoryview(payload), num_layers)
    packed, checksum = seal(Trailer(key(number), version, length, tuple(checksums)))
    meta = BlockMeta(
        hash=key(number),
        parent=key(number - 1) if number else BlockHash(bytes(16)),
        namespace=namespace,
        depth=number,
        num_tokens=64,
        model="tiny",
        tenant="t",
        name=b"object" if number % 4 == 1 else b"",
        value_bytes=length - 1 if number % 4 == 1 else 0,
    )
    block = BlockRecord(meta, length, num_layers, version, checksum, created_s=1000.0 + number)
    return block, aligned_copy(payload + packed)
