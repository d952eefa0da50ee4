"""How objects lie in blocks: footers and manifests round-trip, keys of names and chunks never meet."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.client.objects.format import (
    FOOTER_BYTES,
    Footer,
    ValueType,
    as_name,
    pack_footer,
    pack_manifest,
    parse_footer,
    parse_manifest,
    type_of,
)
from daemons.core.errors import Rejected
from daemons.core.ids import BlockHash
from daemons.protocol.name_hash import chunk_key, name_key
from daemons.store.segment.seal import BadSeal

TYPES = st.builds(
    ValueType,
    st.sampled_from(["bytes", "numpy", "torch"]),
    st.sampled_from(["", "<f4", "bfloat16", "float8_e4m3fnuz"]),
    st.lists(st.integers(0, 1 << 40), max_size=8).map(tuple),
)


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 24), TYPES)
def test_footers_round_trip(value_bytes: int, chunk_bytes: int, value_type: ValueType) -> None:
    footer = Footer(value_bytes, chunk_bytes, value_type)
    packed = pack_footer(footer)
    assert len(packed) == FOOTER_BYTES
    assert parse_footer(packed) == footer


def test_what_is_no_footer_or_manifest_is_refused() -> None:
    packed = pack_footer(Footer(5))
    with pytest.raises(BadSeal):
        parse_footer(b"X" + packed[1:])
    footer = Footer(100, 30)
    assert footer.num_chunks == 4
    assert [footer.chunk_length(index) for index in range(4)] == [30, 30, 30, 10]
    assert parse_manifest(pack_manifest([1, 2, 3, 4]), footer) == (1, 2, 3, 4)
    with pytest.raises(BadSeal):
        parse_manifest(pack_manifest([1, 2, 3]), footer)


def test_types_of_values() -> None:
    assert type_of(b"x") == type_of(bytearray(2)) == type_of(memoryview(b"abc")) == ValueType()
    assert type_of(np.zeros((2, 3), "<i2")) == ValueType("numpy", "<i2", (2, 3))
    with pytest.raises(Rejected):
        type_of(np.zeros([1] * 9))


@pytest.mark.parametrize("name", [b"", "", b"x" * 257, "ä" * 129])
def test_names_have_1_to_256_bytes(name: bytes | str) -> None:
    with pytest.raises(Rejected):
        as_name(name)


@given(st.lists(st.tuples(st.binary(max_size=6), st.binary(min_size=1, max_size=6)), max_size=8))
def test_no_two_names_share_a_key(pairs: list[tuple[bytes, bytes]]) -> None:
    keys = {name_key(namespace, name) for namespace, name in set(pairs)}
    keys |= {chunk_key(BlockHash(k), 1, 0) for k in list(keys)}
    assert len(keys) == 2 * len(set(pairs))
    assert name_key(b"ab", b"c") != name_key(b"a", b"bc")
    assert chunk_key(BlockHash(bytes(16)), 1, 2) != chunk_key(BlockHash(bytes(16)), 2, 1)


@pytest.mark.parametrize("name", [7, None, ["a"], 1.5])
def test_name_of_another_type_is_refused_and_not_made_into_zero_bytes(name: object) -> None:
    with pytest.raises(Rejected, match=f"str or bytes, not {type(name).__name__}"):
        as_name(name)  # type: ignore[arg-type]
