"""Work requests cover exactly the asked bytes, whatever the shapes, chunk borders and limits."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.protocol.segment import Strided
from daemons.transfer.slices import Slice, Span, cut, spans_of
from daemons.transfer.strided import contiguous, copy
from daemons.transfer.transports.rdma.requests import Buffer, Limits, Request, requests_of

SIZE = 4096
BASE = 1 << 20
WIDE = Limits(1 << 30, 1 << 40, 1 << 40, 16)
MEMORY = [Buffer(BASE, 0, BASE)] * 10


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Strided, Strided]:
    """Two shapes of equal length inside SIZE bytes."""

    def shape(length: int) -> Strided:
        divisors = [n for n in range(1, min(length, 40) + 1) if length % n == 0]
        rows = draw(st.sampled_from(divisors))
        row = length // rows
        room = (SIZE - length) // rows
        stride = row + draw(st.integers(0, max(room, 0)))
        span = stride * (rows - 1) + row
        return Strided(
            offset=draw(st.integers(0, SIZE - span)),
            row_bytes=row,
            num_rows=rows,
            stride_bytes=stride,
        )

    length = draw(st.integers(1, 1200))
    return shape(length), shape(length)


all_limits = st.builds(
    Limits,
    request_bytes=st.integers(16, 2000),
    remote_chunk_bytes=st.integers(64, 5000),
    local_chunk_bytes=st.integers(64, 5000),
    max_pieces=st.integers(1, 5),
)


def requests_for(
    pairs: list[tuple[Strided, Strided]], limits: Limits, slice_bytes: int, max_spans: int
) -> list[Request]:
    spans = [span for i, (far, near) in enumerate(pairs) for span in spans_of(far, near, i)]
    slices = cut(spans, slice_bytes, max_spans=max_spans)
    return [request for each in slices for request in requests_of(each, MEMORY, limits)]


def move(requests: list[Request], remote: np.ndarray, local: np.ndarray) -> None:
    for each in requests:
        at = each.remote
        for address, length in each.pieces:
            local[address - BASE : address - BASE + length] = remote[at : at + length]
            at += length


@settings(max_examples=300, deadline=None)
@given(
    pairs=st.lists(shapes(), min_size=1, max_size=4),
    limits=all_limits,
    slice_bytes=st.integers(16, 3000),
    max_spans=st.integers(1, 20),
)
def test_requests_move_the_asked_bytes_within_the_limits(
    pairs: list[tuple[Strided, Strided]], limits: Limits, slice_bytes: int, max_spans: int
) -> None:
    remote = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
    for far, near in pairs:  # each alone, as later ranges may overlap earlier ones
        want, got = np.zeros(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
        copy(remote, far, want, near)
        move(requests_for([(far, near)], limits, slice_bytes, max_spans), remote, got)
        assert np.array_equal(got, want)
    requests = requests_for(pairs, limits, slice_bytes, max_spans)
    assert sum(each.length for each in requests) == sum(far.length for far, _ in pairs)
    for each in requests:
        assert 0 < each.length <= limits.request_bytes
        assert each.length == sum(length for _, length in each.pieces)
        assert 0 < len(each.pieces) <= limits.max_pieces
        last = each.remote + each.length - 1
        assert each.remote // limits.remote_chunk_bytes == last // limits.remote_chunk_bytes
        for address, length in each.pieces:
            start = address - BASE
            chunk = limits.local_chunk_bytes
            assert start // chunk == (start + length - 1) // chunk


def test_neighbours_in_several_buffers_become_one_request() -> None:
    spans = tuple(Span(i * 100, i * 100, 100, i) for i in range(10))
    (whole,) = requests_of(Slice(spans, 1000), MEMORY, WIDE)
    assert (whole.length, whole.pieces) == (1000, ((BASE, 1000),))


def test_rows_on_one_side_are_scattered_by_one_request() -> None:
    rows = Strided(offset=0, row_bytes=10, num_rows=20, stride_bytes=64)
    requests = requests_for([(contiguous(0, 200), rows)], WIDE, 1 << 20, 20)
    assert [len(each.pieces) for each in requests] == [16, 4]


def test_memory_of_another_registration_needs_another_request() -> None:
    buffers = [Buffer(BASE, 0, BASE), Buffer(BASE + 100, 1, BASE + 100)]
    spans = (Span(0, 0, 100, 0), Span(100, 0, 100, 1))
    requests = requests_of(Slice(spans, 200), buffers, WIDE)
    assert [(each.registration, each.length) for each in requests] == [(0, 100), (1, 100)]
