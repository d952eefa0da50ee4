"""The short form of a batch of which each range is one run of bytes: checked and neighbours joined, in one pass.

Most batches are that. What is not, or is wrong in any way, is the long way's to carry out or to explain.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from daemons.protocol.segment import RegionRef, Strided
from daemons.transfer.device_memory import LocalMemory
from daemons.transfer.strided import ByteArray
from daemons.transfer.transports import wire
from daemons.transfer.transports.base import Read, Write, is_flat

M = TypeVar("M")

_READ, _WRITE = int(wire.Op.READ), int(wire.Op.WRITE)
_pack_one = wire.QUICK.pack

MAX_PARTS = 256
"""Of one batch: one call takes the local memory of all."""


class Runs(NamedTuple):
    """What to send for a batch, and its local memory in the order of the stream, `length` bytes."""

    request: bytes
    vectors: list[memoryview]
    length: int


def runs_of_reads(region: RegionRef, reads: Sequence[Read]) -> Runs | None:
    if len(reads) == 1:
        remote, local, target = reads[0]
        if not is_flat(local) or not local.flags.writeable:
            return None
        return _run(_READ, region, local, target, remote)
    parts = [(local, target, remote) for remote, local, target in reads]
    return _runs(_READ, region, parts)


def runs_of_writes(region: RegionRef, writes: Sequence[Write]) -> Runs | None:
    if len(writes) == 1:
        local, source, remote = writes[0]
        if not is_flat(local):
            return None
        return _run(_WRITE, region, local, source, remote)
    return _runs(_WRITE, region, writes)


def _run(
    op: int, region: RegionRef, local: ByteArray, here: Strided, remote: Strided
) -> Runs | None:
    """Of a single one. Not by way of `_runs`: that costs a tenth of a small transfer."""
    region_id = region.region_id
    length, offset, start = remote.row_bytes, remote.offset, here.offset
    if (
        not remote.num_rows == here.num_rows == 1
        or not 0 < length == here.row_bytes
        or length > wire.MAX_EAGER
        or not 0 <= offset <= region.size_bytes - length
        or not 0 <= start <= local.nbytes - length
        or not 0 <= region_id < 1 << 64
    ):
        return None
    request = _pack_one(
        wire.MAGIC, op, 0, 1, 0, 0, region.address.epoch, region_id, 0, 0, offset, length, 1, 0
    )
    return Runs(request, [local.data[start : start + length]], length)


def _runs(
    op: int, region: RegionRef, parts: Sequence[tuple[LocalMemory, Strided, Strided]]
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
            if not is_flat(local) or (op == _READ and not local.flags.writeable):
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
    length = sum([end - start for _, start, end in ours])
    if length > wire.MAX_EAGER:
        return None
    request = wire.plain_request(op, region.address.epoch, region.region_id, _joined(there))
    return Runs(request, [memory[start:end] for memory, start, end in _joined(ours)], length)


def _joined(spans: Sequence[tuple[M, int, int]]) -> list[tuple[M, int, int]]:
    """Those that continue each other in the same memory are one."""
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
