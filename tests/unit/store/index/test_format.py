import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.index_records import HEADER, sealed

from daemons.core.ids import BlockHash
from daemons.protocol.block import BlockFilter
from daemons.store.index.format import (
    MAGIC,
    ClearedRecord,
    FreedRecord,
    IndexHeader,
    IndexReader,
    IndexRecord,
    WrongIndex,
    encode_header,
    encode_record,
    replay,
)


def freed(number: int, offset: int | None = None) -> FreedRecord:
    block_hash = BlockHash(number.to_bytes(16, "big"))
    return FreedRecord(block_hash, 4096 * number if offset is None else offset)


def file_of(records: list[IndexRecord]) -> tuple[bytes, list[int]]:
    """The file, and where each record ends."""
    data, ends = encode_header(HEADER), []
    for record in records:
        data += encode_record(record)
        ends.append(len(data))
    return data, ends


RECORDS: list[IndexRecord] = [sealed(1), sealed(2), freed(1), sealed(3, 4096), freed(2), sealed(4)]


def test_records_come_back_as_written() -> None:
    reader = IndexReader(file_of(RECORDS)[0], HEADER)
    assert list(reader) == RECORDS
    assert (reader.num_bad_records, reader.cut_bytes) == (0, 0)


def test_file_cut_at_any_byte_gives_the_records_before_the_cut() -> None:
    data, ends = file_of(RECORDS)
    header_end = len(encode_header(HEADER))
    for length in range(len(data)):
        if length < header_end:
            with pytest.raises(WrongIndex):
                IndexReader(data[:length], HEADER)
            continue
        reader = IndexReader(data[:length], HEADER)
        whole = [record for record, end in zip(RECORDS, ends, strict=True) if end <= length]
        assert list(reader) == whole
        assert reader.cut_bytes == length - ([header_end, *ends])[len(whole)]
        assert reader.num_bad_records == 0


def test_any_flipped_bit_is_found_and_invents_nothing() -> None:
    data, ends = file_of(RECORDS)
    header_end = len(encode_header(HEADER))
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << (at % 8)
        if at < header_end:
            with pytest.raises(WrongIndex):
                IndexReader(bytes(broken), HEADER)
            continue
        reader = IndexReader(bytes(broken), HEADER)
        found = list(reader)
        hit = next(index for index, end in enumerate(ends) if at < end)
        assert reader.num_bad_records + (reader.cut_bytes > 0) == 1
        assert found == (RECORDS[:hit] if reader.cut_bytes else RECORDS[:hit] + RECORDS[hit + 1 :])


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_foreign_bytes_are_no_index(data: bytes) -> None:
    with pytest.raises(WrongIndex):
        IndexReader(data, HEADER)
    reader = IndexReader(encode_header(HEADER) + data, HEADER)
    assert list(reader) == []
    assert reader.cut_bytes == len(data)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (IndexHeader("node-b", 1 << 26, 1 << 22), "node node-b"),
        (IndexHeader("node-a", 1 << 27, 1 << 22), str(1 << 27)),
        (IndexHeader("node-a", 1 << 26, 1 << 23), str(1 << 23)),
    ],
)
def test_index_of_another_node_or_shape_says_so(other: IndexHeader, why: str) -> None:
    with pytest.raises(WrongIndex, match=why):
        IndexReader(encode_header(other), HEADER)


def test_another_format_is_told_from_another_file() -> None:
    data = b"MCINDEX9" + encode_header(HEADER)[len(MAGIC) :]
    with pytest.raises(WrongIndex, match="another release"):
        IndexReader(data, HEADER)
    with pytest.raises(WrongIndex, match="no index"):
        IndexReader(b"\x7fELF" + data, HEADER)


@pytest.mark.parametrize(
    "payload",
    [
        msgspec.msgpack.encode(["z", 1, 2]),
        msgspec.msgpack.encode(["s", *[None] * 2])[:-1] + b"\x91" * 5000 + b"\xc0",
        b"\x94\xa1f\xc4\x01a\x00" + b"\x91" * 5000 + b"\xc0",
    ],
)
def test_record_of_a_kind_that_is_not_known_is_passed_over(payload: bytes) -> None:
    words = len(payload).to_bytes(4, "little") + zlib.crc32(payload).to_bytes(4, "little")
    strange = words + zlib.crc32(words).to_bytes(4, "little") + payload
    data = encode_header(HEADER) + encode_record(sealed(1)) + strange + encode_record(sealed(2))
    reader = IndexReader(data, HEADER)
    assert list(reader) == [sealed(1), sealed(2)]
    assert reader.num_bad_records == 1


def test_replay_keeps_what_was_sealed_last_in_order() -> None:
    cleared = ClearedRecord(BlockFilter(model="m"), 1_700_000_000_000)
    records: list[IndexRecord] = [
        sealed(1),
        sealed(2),
        sealed(3),
        freed(2),
        cleared,
        sealed(1, 8192),
        freed(3, 0),
    ]
    contents = replay(IndexReader(file_of(records)[0], HEADER))
    live = contents.live
    assert list(live.values()) == [sealed(3), sealed(1, 8192)]
    assert all(record.block.meta.hash == block_hash for block_hash, record in live.items())
    assert contents.cleared == [cleared]
