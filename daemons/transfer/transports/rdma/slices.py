"""Cuts ranges into work requests: neighbours merged, long runs cut, borders of registrations respected. Pure.

A slice here is one run of remote bytes and the local pieces it is scattered to or gathered from.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from daemons.protocol.segment import Strided
from daemons.transfer.slices import spans_of


class LocalRange(NamedTuple):
    """Ranges of local memory that starts at `address`, in registration number `registration` of the transfer."""

    address: int
    ranges: Strided
    registration: int
    base: int
    """Where the registration's first chunk starts."""


class Slice(NamedTuple):
    """`first` is the index of the range it is of; the first one where several were merged."""

    remote: int
    length: int
    pieces: tuple[tuple[int, int], ...]
    """(address, length) of each."""
    registration: int
    first: int


@dataclass(frozen=True, slots=True)
class Limits:
    slice_bytes: int
    remote_chunk_bytes: int
    local_chunk_bytes: int
    """No slice crosses a multiple of them: the keys change there."""
    max_pieces: int
    merges_ranges: bool = True


def cut(ranges: Sequence[tuple[Strided, LocalRange]], limits: Limits) -> Iterator[Slice]:
    """The slices of checked ranges in their order. The work is by rows, never by bytes."""
    building: _Building | None = None
    for index, (remote, local) in enumerate(ranges):
        for remote_offset, local_offset, length, _ in spans_of(remote, local.ranges):
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

    __slots__ = ("_first", "_last", "_length", "_limits", "_pieces", "_registration", "_remote")

    def __init__(self, limits: Limits, remote: int, registration: int, index: int) -> None:
        self._limits = limits
        self._remote = remote
        self._registration = registration
        self._first = self._last = index
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
                and (index == self._last or limits.merges_ranges)
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
        self._last = index
        return True

    def finish(self) -> Iterator[Slice]:
        limit = self._limits.slice_bytes
        if self._length <= limit:
            yield Slice(
                self._remote, self._length, tuple(self._pieces), self._registration, self._first
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
            yield Slice(remote, length, tuple(taken), self._registration, self._first)
            remote, left = remote + length, left - length


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
