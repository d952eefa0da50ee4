"""Values cut into blocks: what each block names, and that its source holds the value's bytes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from daemons.client.objects.format import FOOTER_BYTES, ValueType, parse_footer, parse_manifest
from daemons.client.objects.parts import Item, Part, PartMaker
from daemons.client.objects.source import SourceMemory
from daemons.core.ids import BlockHash, NodeId
from daemons.core.units import MIB
from daemons.protocol.block import MAX_INLINE_BYTES, BlockLocation
from daemons.protocol.name_hash import name_key
from daemons.protocol.segment import RegionRef
from daemons.transfer import ByteArray, Read, TransferEngine

CHUNK_BYTES = 100_000
NAMESPACE = b"training"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[TransferEngine]:
    with TransferEngine(unix_dir=tmp_path) as engine:
        yield engine


@pytest.fixture
def maker(engine: TransferEngine) -> Iterator[PartMaker]:
    memory = SourceMemory(engine)
    yield PartMaker(memory, NAMESPACE, MIB)
    memory.close()


def item(size: int, name: bytes = b"weights") -> Item:
    value = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    return Item(name, value, ValueType(), version=9, wanted=2)


def bytes_of(engine: TransferEngine, part: Part) -> ByteArray:
    source = part.block.source
    found = np.zeros(source.ranges.length, np.uint8)
    read = Read.into(source.ranges, found)
    engine.read(source.region, [read], generation=source.generation)
    return found


def sealed(region: RegionRef, checksum: int) -> BlockLocation:
    return BlockLocation(
        node=NodeId("n"),
        region=region,
        hash=BlockHash(bytes(16)),
        version=9,
        offset=0,
        length=1,
        trailer_bytes=0,
        num_layers=1,
        seal_checksum=checksum,
    )


def test_a_small_value_is_one_block_under_its_own_name(
    engine: TransferEngine, maker: PartMaker
) -> None:
    small = item(CHUNK_BYTES)
    (part,) = maker.first_parts(small, CHUNK_BYTES)
    assert (part.index, part.num_bytes) == (None, CHUNK_BYTES)
    assert part.block.meta.hash == name_key(NAMESPACE, b"weights")
    assert (part.block.version, part.block.wanted) == (9, 2)
    assert np.array_equal(bytes_of(engine, part), small.value)
    footer = parse_footer(part.block.tail)
    assert (footer.value_bytes, footer.chunk_bytes) == (CHUNK_BYTES, 0)


def test_a_large_value_is_chunks_that_nobody_finds_by_name_and_cover_it_once(
    engine: TransferEngine, maker: PartMaker
) -> None:
    large = item(3 * CHUNK_BYTES + 1)
    parts = maker.first_parts(large, CHUNK_BYTES)
    assert [part.index for part in parts] == [0, 1, 2, 3]
    assert [part.num_bytes for part in parts] == [CHUNK_BYTES] * 3 + [1]
    hashes = {part.block.meta.hash for part in parts} | {name_key(NAMESPACE, b"weights")}
    assert len(hashes) == 5
    assert {part.block.object_name for part in parts} == {b"weights"}
    assert not any(part.block.tail for part in parts), "chunks are bare"
    joined = np.concatenate([bytes_of(engine, part) for part in parts])
    assert np.array_equal(joined, large.value)
    assert not large.has_manifest


def test_a_few_small_values_go_with_the_message_and_take_no_memory(engine: TransferEngine) -> None:
    memory = SourceMemory(engine)
    small = item(MAX_INLINE_BYTES)
    maker = PartMaker(memory, NAMESPACE, MAX_INLINE_BYTES)
    maker.make_readable([small])
    (part,) = maker.first_parts(small, CHUNK_BYTES)
    assert part.is_inline
    assert part.block.source.ranges.length == 0
    assert part.block.tail[:MAX_INLINE_BYTES] == small.value.tobytes()
    assert len(part.block.tail) == MAX_INLINE_BYTES + FOOTER_BYTES
    assert parse_footer(part.block.tail[MAX_INLINE_BYTES:]).value_bytes == MAX_INLINE_BYTES
    assert maker.used is None
    assert not PartMaker(memory, NAMESPACE, MAX_INLINE_BYTES + 1).is_inline
    memory.close()


def test_a_node_that_takes_no_values_in_messages_reads_them_where_they_are(
    engine: TransferEngine,
) -> None:
    memory = SourceMemory(engine)
    small = item(1000)
    maker = PartMaker(memory, NAMESPACE, 1000)
    (part,) = maker.first_parts(small, CHUNK_BYTES)
    maker.outline(part)
    assert not part.is_inline
    assert np.array_equal(bytes_of(engine, part), small.value)
    assert parse_footer(part.block.tail).value_bytes == 1000
    assert maker.used is not None
    assert not PartMaker(memory, NAMESPACE, 1000).is_inline
    memory.close()


def test_chunks_of_the_next_version_are_other_blocks(maker: PartMaker) -> None:
    first, second = item(CHUNK_BYTES + 1), item(CHUNK_BYTES + 1)
    second.version = 10
    parts = [maker.first_parts(each, CHUNK_BYTES) for each in (first, second)]
    hashes = [{part.block.meta.hash for part in each} for each in parts]
    assert not hashes[0] & hashes[1]


def test_the_manifest_says_the_seals_of_the_chunks_in_order(
    engine: TransferEngine, maker: PartMaker
) -> None:
    large = item(2 * CHUNK_BYTES)
    region = maker.first_parts(large, CHUNK_BYTES)[0].block.source.region
    large.chunks = [sealed(region, 7), sealed(region, 5)]
    part = maker.manifest(large)
    assert large.has_manifest
    assert part.block.meta.hash == name_key(NAMESPACE, b"weights")
    footer = parse_footer(part.block.tail)
    assert (footer.value_bytes, footer.num_chunks) == (2 * CHUNK_BYTES, 2)
    assert len(part.block.tail) == FOOTER_BYTES
    assert parse_manifest(bytes_of(engine, part).tobytes(), footer) == (7, 5)


def test_only_what_is_copied_while_a_master_answers_is_made_readable_ahead(
    maker: PartMaker,
) -> None:
    first, large, last = item(1000), item(MIB), item(10)
    maker.make_readable([first, large, last])
    assert [each.source is not None for each in (first, large, last)] == [True, False, False]
    before = first.source
    (part,) = maker.first_parts(first, CHUNK_BYTES)
    assert part.block.source is before, "it is not copied twice"
