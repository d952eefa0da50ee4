import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from daemons.core.ids import BlockHash
from daemons.store.segment.seal import (
    BadSeal,
    Trailer,
    layer_checksums,
    parse_trailer,
    row_checksums,
    seal,
    trailer_length,
)

HASH = BlockHash(bytes(range(16)))
trailers = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=80).flatmap(
    lambda checksums: st.builds(
        Trailer,
        hash=st.just(HASH),
        version=st.integers(0, 2**64 - 1),
        length=st.integers(1, 10**6).map(lambda row: 2 * len(checksums) * row),
        checksums=st.just(tuple(checksums)),
    )
)


@given(trailers)
def test_trailers_round_trip(trailer: Trailer) -> None:
    packed, checksum = seal(trailer)
    assert len(packed) == trailer_length(trailer.num_layers)
    assert parse_trailer(packed, checksum, HASH) == trailer


@given(trailers, st.data())
def test_any_changed_byte_is_noticed(trailer: Trailer, data: st.DataObject) -> None:
    packed, checksum = seal(trailer)
    changed = bytearray(packed)
    changed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadSeal, match="does not match"):
        parse_trailer(bytes(changed), checksum, HASH)


@given(st.binary(max_size=400))
def test_hostile_trailers_raise_even_with_the_right_checksum(packed: bytes) -> None:
    with pytest.raises(BadSeal):
        parse_trailer(packed, xxhash.xxh3_64_intdigest(packed), HASH)


def test_a_trailer_of_another_block_is_refused() -> None:
    packed, checksum = seal(Trailer(HASH, 1, 200, (1,)))
    with pytest.raises(BadSeal, match="another block"):
        parse_trailer(packed, checksum, BlockHash(b"x" * 16))


@given(st.integers(1, 5), st.integers(1, 300), st.integers(1, 4), st.randoms())
def test_checksums_agree_however_rows_lie(
    num_layers: int, row: int, num_blocks: int, random: object
) -> None:
    blocks = [
        random.randbytes(2 * num_layers * row)  # type: ignore[attr-defined]  # hypothesis's Random
        for _ in range(num_blocks)
    ]
    expected = [layer_checksums(memoryview(block), num_layers) for block in blocks]
    for layer in range(num_layers):
        start = 2 * layer * row
        k_rows = b"".join(block[start : start + row] for block in blocks)
        v_rows = b"".join(block[start + row : start + 2 * row] for block in blocks)
        found = row_checksums(memoryview(k_rows), memoryview(v_rows), row, num_blocks)
        assert found == [checksums[layer] for checksums in expected]
