import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.core.errors import TransferError
from daemons.protocol.segment import Strided
from daemons.transfer.strided import check_within, contiguous, copy, iovecs, joined, length_of


def reference(memory: np.ndarray, ranges: Strided) -> bytes:
    return b"".join(
        memory[start : start + ranges.row_bytes].tobytes()
        for start in range(
            ranges.offset,
            ranges.offset + ranges.num_rows * max(ranges.stride_bytes, 1),
            max(ranges.stride_bytes, 1),
        )
    )[: ranges.length]


@st.composite
def strided(draw: st.DrawFn, length: int) -> Strided:
    """Ranges of `length` bytes in all, of any shape."""
    rows = draw(st.sampled_from([n for n in range(1, length + 1) if length % n == 0]))
    row = length // rows
    stride = row + draw(st.integers(0, 9))
    return Strided(
        offset=draw(st.integers(0, 20)), row_bytes=row, num_rows=rows, stride_bytes=stride
    )


@st.composite
def pair(draw: st.DrawFn) -> tuple[Strided, Strided]:
    length = draw(st.integers(1, 120))
    return draw(strided(length)), draw(strided(length))


@given(pair())
def test_copy_moves_exactly_the_ranges(ranges: tuple[Strided, Strided]) -> None:
    source_ranges, target_ranges = ranges
    source = np.random.default_rng(1).integers(0, 256, source_ranges.end + 7, np.uint8)
    target = np.zeros(target_ranges.end + 7, np.uint8)
    copy(source, source_ranges, target, target_ranges)
    assert reference(target, target_ranges) == reference(source, source_ranges)
    for index in range(target_ranges.num_rows):
        start = target_ranges.offset + index * target_ranges.stride_bytes
        target[start : start + target_ranges.row_bytes] = 0
    assert not target.any(), "bytes outside the target ranges were written"


@given(st.integers(1, 60).flatmap(strided))
def test_iovecs_cover_the_ranges(ranges: Strided) -> None:
    memory = np.random.default_rng(2).integers(0, 256, ranges.end, np.uint8)
    assert b"".join(bytes(v) for v in iovecs(memory.data, ranges)) == reference(memory, ranges)


@given(st.lists(st.integers(1, 40).flatmap(strided), max_size=8))
def test_joined_ranges_name_the_same_bytes_in_the_same_order(all_ranges: list[Strided]) -> None:
    memory = np.random.default_rng(3).integers(0, 256, 2000, np.uint8)
    found = joined(all_ranges)
    assert b"".join([reference(memory, each) for each in found]) == b"".join(
        [reference(memory, each) for each in all_ranges]
    )
    assert length_of(found) == length_of(all_ranges)


def test_runs_that_continue_each_other_are_one() -> None:
    rows = Strided(offset=30, row_bytes=5, num_rows=2, stride_bytes=9)
    found = joined(
        [contiguous(0, 10), contiguous(10, 20), rows, contiguous(44, 1), contiguous(0, 3)]
    )
    assert found == [contiguous(0, 30), rows, contiguous(44, 1), contiguous(0, 3)]


@given(
    st.builds(
        Strided,
        offset=st.integers(-(2**65), 2**65),
        row_bytes=st.integers(-(2**65), 2**65),
        num_rows=st.integers(-5, 2**65),
        stride_bytes=st.integers(-(2**65), 2**65),
    ),
    st.integers(1, 10_000),
)
def test_accepted_ranges_lie_inside(ranges: Strided, size: int) -> None:
    try:
        check_within(ranges, size, "memory")
    except TransferError:
        return
    assert 0 <= ranges.offset < ranges.end <= size
    assert ranges.length <= size


@pytest.mark.parametrize(
    "ranges",
    [
        Strided(offset=0, row_bytes=0),
        Strided(offset=-1, row_bytes=1),
        Strided(offset=95, row_bytes=6),
        Strided(offset=0, row_bytes=10, num_rows=11, stride_bytes=10),
        Strided(offset=0, row_bytes=10, num_rows=2, stride_bytes=9),
        Strided(offset=0, row_bytes=1, num_rows=0, stride_bytes=1),
    ],
)
def test_ranges_that_leave_the_memory_are_refused(ranges: Strided) -> None:
    with pytest.raises(TransferError, match="does not fit"):
        check_within(ranges, 100, "memory")
