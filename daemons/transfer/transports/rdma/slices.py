"""Cuts reads into slices, each one work request: neighbours merged, long runs cut, chunk borders respected. Pure.

A slice is one run of remote bytes and the local pieces it is scattered to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from daemons.core.units import MIB
from daemons.protocol.segment import Strided

MIN_SLICE_BYTES = MIB
_MAX_SLICE_BYTES = 8 * MIB
_SLICES_PER_PATH = 4
"""Enough for a fast path to take work from a slow one."""


class LocalRange(NamedTuple):
    """Ranges of local memory that starts at `address`, in registration number `registration` of the transfer."""

    address: int
    ranges: Strided
    registration: int
    base: int
    """Where the registration's first chunk starts."""


class Slice(NamedTuple):
    """`read` is the index of the read it is of; the last one where several were merged."""

    remote: int
    length: int
    pieces: tuple[tuple[int, int], ...]
    """(address, length) of each."""
    registration: int
    read: int


@dataclass(frozen=True, slots=True)
class Limits:
    slice_bytes: int
    remote_chunk_bytes: int
    local_chunk_bytes: int
    """No slice crosses a multiple of them: the keys change there."""
    max_pieces: int
    merges_reads: bool = True


def slice_size(total_bytes: int, num_paths: int, max_message_bytes: int) -> int:
    """Slices of equal worth for all paths: at least 1 MiB, where the port carries that."""
    wanted = total_bytes // (num_paths * _SLICES_PER_PATH)
    return min(max(wanted, MIN_SLICE_BYTES), _MAX_SLICE_BYTES, max_message_bytes)


def cut(reads: Sequence[tuple[Strided, LocalRange]], limits: Limits) -> Iterator[Slice]:
    """The slices of checked reads in their order. The work is by rows, never by bytes."""
    building: _Building | None = None
    for index, (remote, local) in enumerate(reads):
        for remote_offset, local_offset, length in _runs(remote, local.ranges):
            address = local.address + local_offset
            for start, size in _cut_at_chunks(remote_offset, address - local.base, length, limits):
                offset, place = remote_offset + start, address + start
                if building is not None and building.take(offset, place, size, local, index):
                    continue
                if building is not None:
                    yield from building.finish()
                building = _Building(limits, offset, local.registration, index)
                taken = building.take(offset, place, size, local, index)
                assert taken
    if building is not None:
        yield from building.finish()


class _Building:
    """A run that still grows; cut when finished, so that no short tail is left behind."""

    __slots__ = ("_index", "_length", "_limits", "_pieces", "_registration", "_remote")

    def __init__(self, limits: Limits, remote: int, registration: int, index: int) -> None:
        self._limits = limits
        self._remote = remote
        self._registration = registration
        self._index = index
        self._length = 0
        self._pieces: list[tuple[int, int]] = []

    def take(self, remote: int, address: int, size: int, local: LocalRange, index: int) -> bool:
        """Add a run; False where it does not continue this one."""
        limits = self._limits
        if self._length:
            fits = (
                remote == self._remote + self._length
                and remote % limits.remote_chunk_bytes != 0
                and local.registration == self._registration
                and (index == self._index or limits.merges_reads)
            )
            if not fits:
                return False
            last_address, last_size = self._pieces[-1]
            is_next = address == last_address + last_size
            if is_next and (address - local.base) % limits.local_chunk_bytes:
                self._pieces[-1] = (last_address, last_size + size)
            elif len(self._pieces) < limits.max_pieces and self._length < limits.slice_bytes:
                self._pieces.append((address, size))
            else:
                return False
        else:
            self._pieces.append((address, size))
        self._length += size
        self._index = index
        return True

    def finish(self) -> Iterator[Slice]:
        limit = self._limits.slice_bytes
        if self._length <= limit:
            yield Slice(
                self._remote, self._length, tuple(self._pieces), self._registration, self._index
            )
            return
        remote, left = self._remote, self._length
        pieces = iter(self._pieces)
        address, size = next(pieces)
        num_slices = -(-left // limit)
        while left:
            # Equal parts in whole pages: no tail shorter than the rest.
            length = min(-(-left // num_slices // 4096) * 4096, left, limit)
            num_slices -= 1
            taken: list[tuple[int, int]] = []
            need = length
            while need:
                part = min(need, size)
                taken.append((address, part))
                address, size, need = address + part, size - part, need - part
                if not size and (left > length or need):
                    address, size = next(pieces)
            yield Slice(remote, length, tuple(taken), self._registration, self._index)
            remote, left = remote + length, left - length


def _runs(remote: Strided, local: Strided) -> Iterator[tuple[int, int, int]]:
    """(remote offset, local offset, length) of the longest runs that are contiguous on both sides."""
    remote_row, remote_left = _row_bytes(remote), 0
    local_row, local_left = _row_bytes(local), 0
    remote_next, local_next = remote.offset, local.offset
    remote_at = local_at = 0
    todo = remote.length
    while todo:
        if not remote_left:
            remote_at, remote_left = remote_next, remote_row
            remote_next += remote.stride_bytes
        if not local_left:
            local_at, local_left = local_next, local_row
            local_next += local.stride_bytes
        length = min(remote_left, local_left)
        yield remote_at, local_at, length
        remote_at, remote_left = remote_at + length, remote_left - length
        local_at, local_left = local_at + length, local_left - length
        todo -= length


def _row_bytes(ranges: Strided) -> int:
    is_dense = ranges.num_rows > 1 and ranges.stride_bytes == ranges.row_bytes
    return ranges.length if is_dense else ranges.row_bytes


def _cut_at_chunks(
    remote: int, local: int, length: int, limits: Limits
) -> Iterator[tuple[int, int]]:
    """(start, size) of the parts between chunk borders of either side."""
    remote_chunk, local_chunk = limits.remote_chunk_bytes, limits.local_chunk_bytes
    start = 0
    while start < length:
        remote_room = remote_chunk - (remote + start) % remote_chunk
        size = min(remote_room, local_chunk - (local + start) % local_chunk, length - start)
        yield start, size
        start += size
