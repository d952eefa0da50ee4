"""Work requests cover exactly the asked bytes, whatever the shapes, chunk borders and limits."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.protocol.segment import Strided
from daemons.transfer.strided import contiguous, copy
from daemons.transfer.transports.rdma.slices import Limits, LocalRange, Slice, cut

SIZE = 4096
BASE = 1 << 20
WIDE = Limits(1 << 30, 1 << 40, 1 << 40, 16)


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


limits = st.builds(
    Limits,
    slice_bytes=st.integers(16, 2000),
    remote_chunk_bytes=st.integers(64, 5000),
    local_chunk_bytes=st.integers(64, 5000),
    max_pieces=st.integers(1, 5),
    merges_ranges=st.booleans(),
)


def move(slices: list[Slice], remote: np.ndarray, local: np.ndarray) -> None:
    for each in slices:
        at = each.remote
        for address, length in each.pieces:
            local[address - BASE : address - BASE + length] = remote[at : at + length]
            at += length


@settings(max_examples=300)
@given(pairs=st.lists(shapes(), min_size=1, max_size=4), limits=limits)
def test_slices_move_the_asked_bytes_within_the_limits(
    pairs: list[tuple[Strided, Strided]], limits: Limits
) -> None:
    remote = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
    ranges = [(far, LocalRange(BASE, near, 0, BASE)) for far, near in pairs]
    slices = list(cut(ranges, limits))
    for far, near in pairs:  # each alone, as later ranges may overlap earlier ones
        want, got = np.zeros(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
        copy(remote, far, want, near)
        move(list(cut([(far, LocalRange(BASE, near, 0, BASE))], limits)), remote, got)
        assert np.array_equal(got, want)
    assert sum(each.length for each in slices) == sum(far.length for far, _ in pairs)
    for each in slices:
        assert 0 < each.length <= limits.slice_bytes
        assert each.length == sum(length for _, length in each.pieces)
        assert 0 < len(each.pieces) <= limits.max_pieces
        last = each.remote + each.length - 1
        assert each.remote // limits.remote_chunk_bytes == last // limits.remote_chunk_bytes
        for address, length in each.pieces:
            start = address - BASE
            chunk = limits.local_chunk_bytes
            assert start // chunk == (start + length - 1) // chunk
    firsts = [each.first for each in slices]
    assert firsts == sorted(firsts)


def test_neighbours_become_one_request_and_long_ones_have_no_short_tail() -> None:
    blocks = [
        (contiguous(i * 100, 100), LocalRange(BASE, contiguous(i * 100, 100), 0, BASE))
        for i in range(10)
    ]
    (whole,) = cut(blocks, WIDE)
    assert (whole.length, whole.pieces) == (1000, ((BASE, 1000),))
    million = 1 << 20
    long = contiguous(0, 3 * million + 5)
    lengths = [
        each.length
        for each in cut(
            [(long, LocalRange(BASE, long, 0, BASE))], Limits(million, 1 << 40, 1 << 40, 1)
        )
    ]
    assert sum(lengths) == long.length
    assert min(lengths) > million // 2


def test_rows_on_one_side_are_scattered_by_one_request() -> None:
    rows = Strided(offset=0, row_bytes=10, num_rows=20, stride_bytes=64)
    slices = list(cut([(contiguous(0, 200), LocalRange(BASE, rows, 0, BASE))], WIDE))
    assert [len(each.pieces) for each in slices] == [16, 4]


def test_ranges_stay_apart_where_each_is_called_back() -> None:
    blocks = [
        (contiguous(i * 100, 100), LocalRange(BASE, contiguous(i * 100, 100), 0, BASE))
        for i in range(3)
    ]
    apart = Limits(1 << 30, 1 << 40, 1 << 40, 16, merges_ranges=False)
    assert [each.first for each in cut(blocks, apart)] == [0, 1, 2]
