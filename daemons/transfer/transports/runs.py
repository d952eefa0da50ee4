"""The short form of a batch of which each range is one run of bytes: checked and neighbours joined, in one pass.

Most batches are that. What is not, or is wrong in any way, is the long way's to carry out or to explain.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from daemons.protocol.segment import RegionRef, Strided
from daemons.transfer.device_memory import DeviceMemory, LocalMemory
from daemons.transfer.transports import wire
from daemons.transfer.transports.base import Read, Write

M = TypeVar("M")

MAX_PARTS = 256
"""Of one batch: one call takes the local memory of all."""


class Runs(NamedTuple):
    """Both sides of a batch in the order of the stream, which are of one length."""

    ranges: list[tuple[int, int]]
    """Offset and length of each run in the region."""
    vectors: list[memoryview]
    length: int


def runs_of_reads(region: RegionRef, reads: Sequence[Read]) -> Runs | None:
    return _runs(region, [(local, target, remote) for remote, local, target in reads], is_read=True)


def runs_of_writes(region: RegionRef, writes: Sequence[Write]) -> Runs | None:
    return _runs(region, writes, is_read=False)


def _runs(
    region: RegionRef, parts: Sequence[tuple[LocalMemory, Strided, Strided]], *, is_read: bool
) -> Runs | None:
    if not 0 <= region.region_id < 1 << 64 or not 0 < len(parts) <= MAX_PARTS:
        return None
    size_bytes, room = region.size_bytes, 0
    there: list[tuple[None, int, int]] = []
    ours: list[tuple[memoryview, int, int]] = []
    before: LocalMemory | None = None
    memory = memoryview(b"")
    for local, here, remote in parts:
        if local is not before:
            if isinstance(local, DeviceMemory) or (is_read and not local.flags.writeable):
                return None
            memory, before, room = local.data, local, local.nbytes
        count, offset, start = remote.row_bytes, remote.offset, here.offset
        if (
            not remote.num_rows == here.num_rows == 1
            or not 0 < count == here.row_bytes
            or not 0 <= offset <= size_bytes - count
            or not 0 <= start <= room - count
        ):
            return None
        there.append((None, offset, offset + count))
        ours.append((memory, start, start + count))
    ranges = [(start, end - start) for _, start, end in _joined(there)]
    length = sum([count for _, count in ranges])
    if length > wire.MAX_EAGER:
        return None
    return Runs(ranges, [memory[start:end] for memory, start, end in _joined(ours)], length)


def _joined(spans: Sequence[tuple[M, int, int]]) -> list[tuple[M, int, int]]:
    """Those that continue each other in the same memory are one."""
    if len(spans) == 1:
        return list(spans)
    found: list[tuple[M, int, int]] = []
    memory, first, last = spans[0]
    for other, start, end in spans[1:]:
        if start == last and other is memory:
            last = end
        else:
            found.append((memory, first, last))
            memory, first, last = other, start, end
    found.append((memory, first, last))
    return found
