"""Cutting: every byte once, in order, no short tails."""

from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.core.units import KIB, MIB
from daemons.protocol.segment import Strided
from daemons.transfer.slices import (
    MAX_SLICE_BYTES,
    MIN_SLICE_BYTES,
    Span,
    cut,
    merge,
    slice_bytes,
    spans_of,
)


def test_neighbours_on_both_sides_become_one_range() -> None:
    spans = [Span(0, 100, 10), Span(10, 110, 10), Span(20, 130, 10), Span(30, 140, 10, buffer=1)]
    assert merge(spans) == [Span(0, 100, 20), Span(20, 130, 10), Span(30, 140, 10, buffer=1)]


def test_a_long_range_is_cut_evenly_without_a_short_tail() -> None:
    lengths = [s.length for s in cut([Span(0, 0, 10 * MIB + 5)], 3 * MIB)]
    assert sum(lengths) == 10 * MIB + 5
    assert min(lengths) >= 3 * MIB
    assert max(lengths) - min(lengths) <= 3 * 4 * KIB


def test_verbs_get_one_range_a_slice_and_streams_share_it() -> None:
    scattered = [Span(i * MIB, i * 64 * KIB, 64 * KIB) for i in range(40)]
    assert len(cut(scattered, MIB)) == 40
    assert [len(s.spans) for s in cut(scattered, MIB, max_spans=512)] == [16, 16, 8]
    assert [len(s.spans) for s in cut(scattered, MIB, max_spans=30)] == [16, 16, 8]


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=30),
    gaps=st.lists(st.integers(0, 3), min_size=30, max_size=30),
    size=st.integers(1, 4000),
    max_spans=st.integers(1, 5),
)
def test_cut_covers_every_byte_once_in_order(
    lengths: list[int], gaps: list[int], size: int, max_spans: int
) -> None:
    spans, remote = [], 0
    for length, gap in zip(lengths, gaps, strict=False):
        remote += gap
        spans.append(Span(remote, remote + 7, length))
        remote += length
    slices = cut(spans, size, max_spans=max_spans)
    flat = [span for piece in slices for span in piece.spans]
    assert merge(flat) == merge(spans)
    for piece in slices:
        assert piece.length == sum(span.length for span in piece.spans)
        assert len(piece.spans) <= max_spans
        assert piece.length < 3 * size
    for piece in slices[:-1] if max_spans > 1 else []:
        assert piece.length >= size or len(piece.spans) == max_spans


@settings(deadline=None)
@given(
    rows=st.integers(1, 6),
    row=st.integers(1, 8),
    cuts=st.sampled_from([1, 2, 3]),
    gap=st.integers(0, 3),
)
def test_spans_pair_any_two_shapes(rows: int, row: int, cuts: int, gap: int) -> None:
    remote = Strided(offset=5, row_bytes=row * 6, num_rows=rows, stride_bytes=row * 6 + gap)
    small = row * 6 // cuts
    target = Strided(offset=9, row_bytes=small, num_rows=rows * cuts, stride_bytes=small + 2)
    theirs = [5 + r * remote.stride_bytes + i for r in range(rows) for i in range(row * 6)]
    ours = [9 + r * target.stride_bytes + i for r in range(rows * cuts) for i in range(small)]
    paired = [
        (span.remote + i, span.local + i)
        for span in spans_of(remote, target)
        for i in range(span.length)
    ]
    assert paired == list(zip(theirs, ours, strict=True))


def test_slice_size_follows_the_batch_within_its_bounds() -> None:
    assert slice_bytes(64 * KIB, 8) == MIN_SLICE_BYTES
    assert slice_bytes(64 * MIB, 4) == 4 * MIB
    assert slice_bytes(1 << 40, 1) == MAX_SLICE_BYTES
