"""Cutting a transfer into slices, pure: neighbouring ranges merged, long ones cut evenly, short ones together."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from daemons.core.units import MIB
from daemons.protocol.segment import Strided

MIN_SLICE_BYTES: Final = MIB
MAX_SLICE_BYTES: Final = 8 * MIB
"""What is aimed at; one slice may have up to three times as much."""
_SLICES_PER_PATH: Final = 4
"""Enough that a path which turns out slow leaves work for the others."""
_ALIGN_BYTES: Final = 4096


class Span(NamedTuple):
    """Remote bytes and where they go. `buffer` names the local memory; it is the caller's to number."""

    remote: int
    local: int
    length: int
    buffer: int = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """What one request carries: a piece of a long range, or several short ranges."""

    spans: tuple[Span, ...]
    length: int


def spans_of(remote: Strided, target: Strided, buffer: int = 0) -> Iterator[Span]:
    """Pair two shapes of equal length, run by run; dense rows come as one run."""
    theirs, ours = _runs(remote), _runs(target)
    offset, length = next(theirs)
    local, room = next(ours)
    while True:
        step = min(length, room)
        yield Span(offset, local, step, buffer)
        offset, length, local, room = offset + step, length - step, local + step, room - step
        try:
            if not length:
                offset, length = next(theirs)
            if not room:
                local, room = next(ours)
        except StopIteration:
            return


def _runs(ranges: Strided) -> Iterator[tuple[int, int]]:
    if ranges.num_rows == 1 or ranges.stride_bytes == ranges.row_bytes:
        yield ranges.offset, ranges.length
        return
    for row in range(ranges.num_rows):
        yield ranges.offset + row * ranges.stride_bytes, ranges.row_bytes


def merge(spans: Iterable[Span]) -> list[Span]:
    """Neighbours that continue each other on both sides become one. The order stays."""
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.buffer == span.buffer
            and last.remote + last.length == span.remote
            and last.local + last.length == span.local
        ):
            merged[-1] = last._replace(length=last.length + span.length)
        else:
            merged.append(span)
    return merged


def slice_bytes(total_bytes: int, num_paths: int) -> int:
    """A size that gives every path several slices, within MIN_SLICE_BYTES..MAX_SLICE_BYTES."""
    wanted = total_bytes // max(num_paths * _SLICES_PER_PATH, 1)
    return max(MIN_SLICE_BYTES, min(wanted, MAX_SLICE_BYTES))


def cut(spans: Iterable[Span], size_bytes: int, *, max_spans: int = 1) -> list[Slice]:
    """Slices that cover every byte once, in order, each of `size_bytes` or a little more where the ranges allow it.

    A longer range is cut evenly into pieces below twice the size, so that no short tail is left. Shorter ones share
    a slice, up to `max_spans` of them: 1 for verbs, where a work request has one remote range; a frame's limit for TCP.
    """
    assert size_bytes > 0, "an empty slice carries nothing"
    assert max_spans > 0, "an empty slice carries nothing"
    slices: list[Slice] = []
    open_spans: list[Span] = []
    length = 0
    for piece in itertools.chain.from_iterable(_pieces(span, size_bytes) for span in merge(spans)):
        open_spans.append(piece)
        length += piece.length
        if length >= size_bytes or len(open_spans) == max_spans:
            slices.append(Slice(tuple(open_spans), length))
            open_spans, length = [], 0
    if open_spans:
        slices.append(Slice(tuple(open_spans), length))
    return slices


def _pieces(span: Span, size_bytes: int) -> Iterator[Span]:
    count = max(span.length // size_bytes, 1)
    step = span.length // count
    if step // _ALIGN_BYTES * _ALIGN_BYTES >= size_bytes:
        step = step // _ALIGN_BYTES * _ALIGN_BYTES
    for index in range(count):
        start = index * step
        yield span._replace(
            remote=span.remote + start,
            local=span.local + start,
            length=step if index < count - 1 else span.length - start,
        )
