import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.core.errors import ProtocolError
from daemons.protocol.segment import Strided
from daemons.transfer.transports import wire

u64 = st.integers(0, 2**64 - 1)
ranges = st.builds(
    Strided, offset=u64, row_bytes=u64, num_rows=st.integers(0, 1000), stride_bytes=u64
)
requests = st.builds(
    wire.Request,
    op=st.just(wire.Op.READ),
    epoch=u64,
    region_id=u64,
    generation=st.none() | st.tuples(u64, u64),
    ranges=st.lists(ranges, min_size=1, max_size=20).map(tuple),
)


@given(requests)
def test_requests_round_trip(request: wire.Request) -> None:
    frame = wire.encode_request(request)
    assert wire.request_length(frame[: wire.REQUEST.size]) == len(frame)
    assert wire.decode_request(frame) == request


@given(st.binary(min_size=wire.REQUEST.size, max_size=wire.REQUEST.size))
def test_hostile_headers_parse_or_raise(header: bytes) -> None:
    for frame in (header, wire.MAGIC + header[4:]):
        try:
            length = wire.request_length(frame)
        except ProtocolError:
            continue
        assert wire.REQUEST.size <= length <= wire.REQUEST.size + wire.MAX_RANGES * wire.RANGE.size


def test_a_request_cannot_ask_for_endless_rows() -> None:
    row = Strided(offset=0, row_bytes=1, num_rows=wire.MAX_ROWS, stride_bytes=1)
    request = wire.Request(
        op=wire.Op.READ, epoch=1, region_id=1, generation=None, ranges=(row, row)
    )
    with pytest.raises(ProtocolError, match="too many rows"):
        wire.decode_request(wire.encode_request(request))


def test_runs_are_found_only_where_all_lie_in_the_memory() -> None:
    memory = memoryview(bytes(range(100)))

    def frame(*ranges: tuple[int, int, int]) -> bytes:
        return bytes(wire.REQUEST.size) + b"".join(wire.RANGE.pack(*each, 0) for each in ranges)

    found = wire.runs_in(frame((90, 10, 1), (0, 1, 1)), 2, memory)
    assert found is not None
    assert [bytes(run) for run in found] == [bytes(range(90, 100)), b"\0"]
    for wrong in ((90, 11, 1), (5, 0, 1), (5, 1, 2), (5, 1, 0), (1 << 63, 1 << 63, 1), (101, 1, 1)):
        assert wire.runs_in(frame((0, 1, 1), wrong), 2, memory) is None, wrong
    assert wire.runs_in(frame((0, 1, 1))[:-1], 1, memory) is None
    assert wire.runs_in(frame(), 0, memory) is None


@given(st.lists(st.integers(1, 9), max_size=1200), st.integers(1, 50))
def test_windows_lose_nothing_however_much_is_moved_at_once(sizes: list[int], step: int) -> None:
    vectors = [memoryview(bytes([i % 256]) * size) for i, size in enumerate(sizes)]
    moved = b""
    for window in wire.windows(iter(vectors)):
        assert len(window) < 1024
        while window:
            part = b"".join(window)[:step]
            moved += part
            wire.drop_front(window, len(part))
    assert moved == b"".join(vectors)
