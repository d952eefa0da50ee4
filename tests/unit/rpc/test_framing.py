"""The 24 bytes of the header."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.core.errors import ProtocolError
from daemons.rpc.framing import HEADER_BYTES, Header, Kind, unpack_header


@given(
    kind=st.sampled_from(Kind),
    request_id=st.integers(0, 2**64 - 1),
    deadline_ms=st.integers(0, 2**32 - 1),
    incarnation=st.integers(0, 2**64 - 1),
)
def test_header_round_trips(
    kind: Kind, request_id: int, deadline_ms: int, incarnation: int
) -> None:
    header = Header(kind, request_id, deadline_ms, incarnation)
    assert unpack_header(header.pack()) == header


def test_header_bytes_are_the_documented_ones() -> None:
    header = Header(Kind.REQUEST, 0x0102, 5000, 7)
    assert header.pack().hex() == "02010000" + "88130000" + "0201000000000000" + "0700000000000000"


@given(frame=st.binary(max_size=64))
def test_other_bytes_are_a_protocol_error_or_a_header(frame: bytes) -> None:
    try:
        header = unpack_header(frame)
    except ProtocolError:
        return
    assert len(frame) == HEADER_BYTES
    assert header.kind in Kind


def test_unknown_kind_is_refused() -> None:
    frame = bytearray(Header(Kind.REPLY, 1).pack())
    frame[1] = 99
    with pytest.raises(ProtocolError, match="99"):
        unpack_header(bytes(frame))
