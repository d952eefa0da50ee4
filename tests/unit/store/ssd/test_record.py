import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.errors import ConfigError
from daemons.store.ssd.files import ALIGN
from daemons.store.ssd.record import (
    MAX_DELETES,
    Place,
    RecordKind,
    TombstoneRecord,
    block_layout,
    decode_header,
    decode_tombstone,
    encode_block,
    encode_tombstone,
    record_bytes,
)
from daemons.store.ssd.settings import MIN_BUCKET_BYTES

SECRET = 0x1234_5678_9ABC_DEF0
PLACE = Place(offset=8 * ALIGN, sequence=77, durable_to=4 * ALIGN)


def page(header: bytes) -> bytearray:
    return bytearray(header + bytes(ALIGN))[:ALIGN]


@given(
    number=st.integers(0, 1000),
    version=st.integers(0, 2**64 - 1),
    layer_bytes=st.integers(1, 5000).map(lambda half: 2 * half),
    num_layers=st.integers(1, 64),
    namespace=st.binary(max_size=256),
)
def test_block_headers_round_trip(
    number: int, version: int, layer_bytes: int, num_layers: int, namespace: bytes
) -> None:
    block, _ = make_block(number, layer_bytes=2, num_layers=1, namespace=namespace)
    block = type(block)(block.meta, layer_bytes * num_layers, num_layers, version, 2**64 - 1, 12.5)
    header = decode_header(memoryview(page(encode_block(block, PLACE, SECRET))), 8 * ALIGN, SECRET)
    assert header is not None
    assert header.kind is RecordKind.BLOCK
    assert header.block == block
    assert header.place == PLACE
    assert (header.body_offset, header.record_bytes) == block_layout(block)
    assert header.record_bytes % ALIGN == 0


@given(keys=st.lists(st.integers(0, 99), max_size=20), until=st.integers(1, 2**63))
def test_tombstones_round_trip(keys: list[int], until: int) -> None:
    tombstone = TombstoneRecord(RecordKind.DELETES, until, tuple(key(number) for number in keys))
    packed = encode_tombstone(tombstone, PLACE, SECRET)
    header = decode_header(memoryview(page(packed)), 8 * ALIGN, SECRET)
    assert header is not None
    assert header.record_bytes == record_bytes(tombstone)
    body = memoryview(packed)[header.body_offset :]
    assert decode_tombstone(header, body, SECRET) == tombstone


def test_a_full_tombstone_fits_the_smallest_bucket() -> None:
    assert (
        record_bytes(TombstoneRecord(RecordKind.DELETES, 1, (key(1),) * MAX_DELETES))
        <= MIN_BUCKET_BYTES
    )


def test_clear_keeps_its_namespace() -> None:
    packed = encode_tombstone(
        TombstoneRecord(RecordKind.CLEAR, 9, namespace=b"model"), PLACE, SECRET
    )
    header = decode_header(memoryview(page(packed)), 8 * ALIGN, SECRET)
    assert header is not None
    assert decode_tombstone(header, memoryview(b""), SECRET) == TombstoneRecord(
        RecordKind.CLEAR, 9, namespace=b"model"
    )


def test_every_flipped_byte_of_a_header_is_noticed() -> None:
    header = encode_block(make_block(1)[0], PLACE, SECRET)
    for at in range(len(header)):
        changed = page(header)
        changed[at] ^= 0x10
        assert decode_header(memoryview(changed), 8 * ALIGN, SECRET) is None


def test_a_header_counts_only_in_its_own_place_and_bucket() -> None:
    header = memoryview(page(encode_block(make_block(1)[0], PLACE, SECRET)))
    assert decode_header(header, 9 * ALIGN, SECRET) is None
    assert decode_header(header, 8 * ALIGN, SECRET + 1) is None


def test_a_newer_format_is_refused_not_misread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemons.store.ssd.record.FORMAT", 2)
    header = encode_block(make_block(1)[0], PLACE, SECRET)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="newer version"):
        decode_header(memoryview(page(header)), 8 * ALIGN, SECRET)
