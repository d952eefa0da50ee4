"""Strided byte ranges over flat memory: bounds, copies, and scatter lists.

Every access to a region goes through `check_within`; nothing here allocates or copies by Python loops per byte.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import gcd

import numpy as np
from numpy.typing import NDArray

from daemons.core.errors import TransferError
from daemons.protocol.segment import Strided

ByteArray = NDArray[np.uint8]
"""One-dimensional contiguous bytes."""


def contiguous(offset: int, length: int) -> Strided:
    """One run of bytes."""
    return Strided(offset=offset, row_bytes=length)


def check_within(ranges: Strided, size_bytes: int, what: str) -> None:
    """Refuse ranges that leave `size_bytes`, overlap themselves, or are empty. Once per range and side: kept short."""
    offset, row, stride = ranges.offset, ranges.row_bytes, ranges.stride_bytes
    rows = ranges.num_rows
    is_shaped = row > 0 and (rows == 1 or (rows > 1 and stride >= row))
    if not is_shaped or offset < 0 or offset + stride * (rows - 1) + row > size_bytes:
        raise TransferError(
            f"range offset={offset} rows={rows}x{row} stride={stride} "
            f"does not fit {what} of {size_bytes} bytes"
        )


def length_of(all_ranges: Iterable[Strided]) -> int:
    """Bytes of all together."""
    return sum([ranges.row_bytes * ranges.num_rows for ranges in all_ranges])


def joined(all_ranges: Sequence[Strided]) -> list[Strided]:
    """The same bytes in the same order: runs that continue each other are one."""
    found: list[Strided] = []
    start = end = 0
    for ranges in all_ranges:
        offset = ranges.offset
        if ranges.num_rows == 1 and offset == end and start < end:
            end += ranges.row_bytes
            continue
        if start < end:
            found.append(contiguous(start, end - start))
        if ranges.num_rows == 1:
            start, end = offset, offset + ranges.row_bytes
        else:
            found.append(ranges)
            start = end = 0
    if start < end:
        found.append(contiguous(start, end - start))
    return found


def rows_of(memory: ByteArray, ranges: Strided) -> ByteArray:
    """The rows as a (num_rows, row_bytes) view; the caller has checked the bounds."""
    return np.ndarray(
        (ranges.num_rows, ranges.row_bytes),
        np.uint8,
        memory,
        ranges.offset,
        (ranges.stride_bytes, 1),
    )


def copy(source: ByteArray, source_ranges: Strided, target: ByteArray, ranges: Strided) -> None:
    """Copy equal totals, whatever the two shapes, in one np.copyto, which releases the GIL.

    A slice assignment would hold the GIL for the whole copy. Shapes whose rows do not divide each other
    are cut at their greatest common row, which costs more but needs no second code path.
    """
    if ranges.num_rows == 1:  # what most reads are: rows into one run
        flat = target[ranges.offset : ranges.offset + ranges.row_bytes]
        rows = rows_of(source, source_ranges)
        np.copyto(flat.reshape(rows.shape), rows)
        return
    source_ranges, ranges = _dense(source_ranges), _dense(ranges)
    if source_ranges.row_bytes == ranges.row_bytes:
        np.copyto(rows_of(target, ranges), rows_of(source, source_ranges))
        return
    row = gcd(source_ranges.row_bytes, ranges.row_bytes)
    if row in (source_ranges.row_bytes, ranges.row_bytes):
        shape = _common_shape(source_ranges, ranges)
        np.copyto(_cut(target, ranges, shape), _cut(source, source_ranges, shape))
        return
    pieces = zip(_pieces(source_ranges, row), _pieces(ranges, row), strict=True)
    for source_offset, offset in pieces:
        np.copyto(target[offset : offset + row], source[source_offset : source_offset + row])


def iovecs(memory: memoryview, ranges: Strided) -> Iterator[memoryview]:
    """The rows as memoryviews, made as they are asked for; dense rows come as one."""
    ranges = _dense(ranges)
    offset = ranges.offset
    for _ in range(ranges.num_rows):
        yield memory[offset : offset + ranges.row_bytes]
        offset += ranges.stride_bytes


def iovecs_of(parts: Iterable[tuple[memoryview, Strided]]) -> Iterator[memoryview]:
    """The rows of all, in order; kept short, as most ranges are one run and there are thousands a second."""
    for memory, ranges in parts:
        if ranges.num_rows == 1:
            offset = ranges.offset
            yield memory[offset : offset + ranges.row_bytes]
        else:
            yield from iovecs(memory, ranges)


def _dense(ranges: Strided) -> Strided:
    if ranges.num_rows > 1 and ranges.stride_bytes == ranges.row_bytes:
        return contiguous(ranges.offset, ranges.length)
    return ranges


def _common_shape(one: Strided, other: Strided) -> tuple[int, int, int]:
    """(outer, inner, row) that both can be seen as: the longer row is cut into rows of the shorter one."""
    longer, row = max(one, other, key=lambda r: r.row_bytes), min(one.row_bytes, other.row_bytes)
    return longer.num_rows, longer.row_bytes // row, row


def _cut(memory: ByteArray, ranges: Strided, shape: tuple[int, int, int]) -> ByteArray:
    _, inner, row = shape
    if ranges.row_bytes == row:
        strides = (ranges.stride_bytes * inner, ranges.stride_bytes, 1)
    else:
        strides = (ranges.stride_bytes, row, 1)
    return np.ndarray(shape, np.uint8, memory, ranges.offset, strides)


def _pieces(ranges: Strided, row: int) -> Iterator[int]:
    for index in range(ranges.num_rows):
        start = ranges.offset + index * ranges.stride_bytes
        yield from range(start, start + ranges.row_bytes, row)
