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
    run = _Run(limits)
    remote_chunk, local_chunk = limits.remote_chunk_bytes, limits.local_chunk_bytes
    for index, (remote, local) in enumerate(ranges):
        base, shift = local.base, local.address - local.base
        for start, local_offset, length, _ in spans_of(remote, local.ranges):
            place = shift + local_offset
            if (
                start % remote_chunk + length > remote_chunk
                or place % local_chunk + length > local_chunk
            ):
                parts = _parts(start, place, length, limits)
            else:
                parts = [(start, place, length)]
            for offset, at, size in parts:
                if offset != run.end or not run.take(at, size, local, index):
                    yield from run.finish()
                    run.begin(offset, (base + at, size), local.registration, index)
    yield from run.finish()


class _Run:
    """Bytes that follow each other at the peer; cut when they end, so that no short tail is left behind."""

    __slots__ = ("_first", "_last", "_length", "_limits", "_pieces", "_registration", "end")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.end = -1
        self._length = 0
        self._pieces: list[tuple[int, int]] = []
        self._registration = self._first = self._last = 0

    def begin(self, remote: int, piece: tuple[int, int], registration: int, index: int) -> None:
        self._length = piece[1]
        self.end = remote + piece[1]
        self._pieces = [piece]
        self._registration = registration
        self._first = self._last = index

    def take(self, place: int, size: int, local: LocalRange, index: int) -> bool:
        """Add the peer's next bytes, to go to `place` from the registration's start; False where another run begins."""
        limits = self._limits
        fits = (
            self.end % limits.remote_chunk_bytes != 0
            and local.registration == self._registration
            and (index == self._last or limits.merges_ranges)
        )
        if not fits:
            return False
        last_address, last_size = self._pieces[-1]
        address = local.base + place
        if address == last_address + last_size and place % limits.local_chunk_bytes:
            self._pieces[-1] = (last_address, last_size + size)
        elif len(self._pieces) < limits.max_pieces and self._length < limits.slice_bytes:
            self._pieces.append((address, size))
        else:
            return False
        self._length += size
        self.end += size
        self._last = index
        return True

    def finish(self) -> Sequence[Slice]:
        length = self._length
        if not length:
            return ()
        remote = self.end - length
        if length <= self._limits.slice_bytes:
            return (Slice(remote, length, tuple(self._pieces), self._registration, self._first),)
        return list(self._cut_long(remote, length))

    def _cut_long(self, remote: int, left: int) -> Iterator[Slice]:
        """Equal parts in whole pages: no tail much shorter than the rest."""
        limit = self._limits.slice_bytes
        pieces = iter(self._pieces)
        address, size = next(pieces)
        num_slices = -(-left // limit)
        while left:
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


def _parts(remote: int, local: int, length: int, limits: Limits) -> list[tuple[int, int, int]]:
    """(remote, local, size) of what lies between chunk borders of either side."""
    remote_chunk, local_chunk = limits.remote_chunk_bytes, limits.local_chunk_bytes
    parts = []
    while length:
        size = min(remote_chunk - remote % remote_chunk, local_chunk - local % local_chunk, length)
        parts.append((remote, local, size))
        remote, local, length = remote + size, local + size, length - size
    return parts
