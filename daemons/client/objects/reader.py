"""Reading blocks of objects: whole or a range, verified against the seal that their location names.

Pieces are copied and then hashed while they are in the CPU's cache. What does not verify raises BadSeal, and what the
target holds then is garbage.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from daemons.client.objects.format import FOOTER_BYTES, Footer, parse_footer
from daemons.client.objects.stream import Arriving, receive, trailer_of
from daemons.core.errors import Unavailable
from daemons.core.units import KIB
from daemons.protocol.block import BlockLocation
from daemons.protocol.segment import Grant
from daemons.store.segment.seal import BadSeal, Trailer
from daemons.transfer import ByteArray, Read, TransferEngine, contiguous

_WHOLE_BYTES: Final = 64 * KIB
"""Up to here one READ brings all of a block, at the cost of a copy."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one replica is, and what opens it."""

    location: BlockLocation
    grant: Grant | None = None


class ObjectReader:
    """Thread safe. Raises BadSeal, TransferError and Unavailable of the one replica it is asked to read."""

    def __init__(self, engine: TransferEngine) -> None:
        self.engine = engine

    def read_object(
        self, place: Place, target: ByteArray | None, timeout_s: float
    ) -> tuple[Footer, ByteArray]:
        """The footer, and what lies before it: value or manifest; a value in `target` where it fits that exactly."""
        at = place.location
        body_bytes = at.length - FOOTER_BYTES
        if body_bytes < 0:
            raise BadSeal("the block is no object")
        near = self.engine.mapped(at.region)
        if near is not None:
            return self._read_near(at, near, target)
        if body_bytes <= _WHOLE_BYTES:
            return self._read_small(place, target, timeout_s)
        body = target
        if body is None or body.nbytes != body_bytes:
            body = np.empty(body_bytes, np.uint8)
        arriving = Arriving(at, body)
        receive(self.engine, (at, place.grant), [arriving], timeout_s)
        if not arriving.is_good or arriving.footer is None:
            raise BadSeal(arriving.why)
        return arriving.footer, body

    def _read_near(
        self,
        at: BlockLocation,
        near: tuple[ByteArray, Callable[[], bool]],
        target: ByteArray | None,
    ) -> tuple[Footer, ByteArray]:
        """`read_object` where the node's memory is mapped: for small values a READ costs more than all else."""
        memory, is_there = near
        body_bytes = at.length - FOOTER_BYTES
        if at.offset < 0 or at.trailer_bytes < 0 or at.offset + _end(at) > memory.nbytes:
            raise BadSeal("it lies outside the node's memory")
        stored = memory[at.offset : at.offset + _end(at)]
        ending = stored[body_bytes:].copy()
        trailer = trailer_of(at, ending[FOOTER_BYTES:].data)
        footer = parse_footer(ending[:FOOTER_BYTES].data)
        if target is None and not footer.chunk_bytes:
            # What becomes bytes in the end is bytes from the start: `value_of` finds them.
            body = np.frombuffer(stored[:body_bytes].tobytes(), np.uint8)
        else:
            body = _body(footer, body_bytes, target)

        def read(start: int, part: ByteArray) -> None:
            if part.flags.writeable:
                np.copyto(part, stored[start : start + part.nbytes])

        _read_pieces(read, trailer, (0, trailer.num_layers), [body, ending[:FOOTER_BYTES]])
        if not is_there():
            raise Unavailable(f"{at.node} went away during a READ")
        return footer, body

    def read_footer(self, place: Place, timeout_s: float) -> tuple[Footer, Trailer]:
        """Of a block whose last piece is verified by it; for a look at what an object is."""
        at = place.location
        ending = self._read(place, max(0, at.length - FOOTER_BYTES), _end(at), timeout_s)
        trailer = trailer_of(at, ending[FOOTER_BYTES:].data)
        first = (trailer.num_layers - 1) * trailer.piece_bytes
        last = self._read(place, first, at.length, timeout_s)
        _check(last.data, trailer, trailer.num_layers - 1)
        return parse_footer(last[-FOOTER_BYTES:].data), trailer

    def read_chunk(self, place: Place, target: ByteArray, timeout_s: float) -> None:
        """All of a chunk, which has no footer."""
        arriving = Arriving(place.location, target, footer_bytes=0)
        receive(self.engine, (place.location, place.grant), [arriving], timeout_s)
        if not arriving.is_good:
            raise BadSeal(arriving.why)

    def read_range(self, place: Place, start: int, target: ByteArray, timeout_s: float) -> None:
        """Bytes from `start` of a block's payload; whole pieces are read and verified for it."""
        at = place.location
        deadline_s = time.monotonic() + timeout_s
        packed = self._read(place, at.length, _end(at), timeout_s)
        trailer = trailer_of(at, packed.data)
        piece, end = trailer.piece_bytes, start + target.nbytes
        if not 0 <= start <= end <= at.length:
            raise BadSeal(f"bytes {start} to {end} of {at.length}")
        first, last = start // piece, -(-end // piece)
        whole = np.empty(min(last * piece, at.length) - first * piece, np.uint8)

        def read(begin: int, part: ByteArray) -> None:
            self._read_into(place, begin, part, max(0.001, deadline_s - time.monotonic()))

        _read_pieces(read, trailer, (first, last), [whole])
        target[:] = whole[start - first * piece : end - first * piece]

    def _read_small(
        self, place: Place, target: ByteArray | None, timeout_s: float
    ) -> tuple[Footer, ByteArray]:
        at = place.location
        whole = self._read(place, 0, _end(at), timeout_s)
        trailer = trailer_of(at, whole[at.length :].data)
        piece = trailer.piece_bytes
        for index in range(trailer.num_layers):
            _check(whole[index * piece : min(at.length, (index + 1) * piece)].data, trailer, index)
        body = whole[: at.length - FOOTER_BYTES]
        footer = parse_footer(whole[at.length - FOOTER_BYTES : at.length].data)
        if target is None or footer.chunk_bytes or target.nbytes != body.nbytes:
            return footer, body
        target[:] = body
        return footer, target

    def _read(self, place: Place, start: int, end: int, timeout_s: float) -> ByteArray:
        target = np.empty(end - start, np.uint8)
        self._read_into(place, start, target, timeout_s)
        return target

    def _read_into(self, place: Place, start: int, target: ByteArray, timeout_s: float) -> None:
        at = place.location
        read = Read(
            contiguous(at.offset + start, target.nbytes), target, contiguous(0, target.nbytes)
        )
        self.engine.read(at.region, [read], capability=place.grant, timeout_s=timeout_s)


def value_of(body: ByteArray) -> bytes:
    """Without a copy where the array shows a whole bytes object."""
    whole = body.base
    return whole if isinstance(whole, bytes) and len(whole) == body.nbytes else body.tobytes()


def _read_pieces(
    read: Callable[[int, ByteArray], object],
    trailer: Trailer,
    pieces: tuple[int, int],
    parts: Sequence[ByteArray],
) -> None:
    """Pieces [first, last) into the first of `parts`; a second one is there already, and ends the payload.

    `read(start, part)` brings bytes of the payload.
    """
    target, piece = parts[0], trailer.piece_bytes
    base = pieces[0] * piece
    for index in range(*pieces):
        part = target[index * piece - base : (index + 1) * piece - base]
        if part.nbytes:
            read(index * piece, part)
        if len(parts) == 1 or part.nbytes == piece:
            _check(part.data, trailer, index)
            continue
        # The piece ends in the footer, or is all of the footer's that the one before had no room for.
        done = max(0, index * piece - target.nbytes)
        behind = parts[1][done : done + piece - part.nbytes]
        digest = xxhash.xxh3_64(part.data)
        digest.update(behind.data)
        if digest.intdigest() != trailer.checksums[index]:
            raise BadSeal(f"piece {index} does not match its checksum")


def _body(footer: Footer, body_bytes: int, target: ByteArray | None) -> ByteArray:
    """The target for a value that fits it, else memory of our own."""
    if target is not None and not footer.chunk_bytes and target.nbytes == body_bytes:
        return target
    return np.empty(body_bytes, np.uint8)


def _end(at: BlockLocation) -> int:
    return at.length + at.trailer_bytes


def _check(piece: memoryview, trailer: Trailer, index: int) -> None:
    if xxhash.xxh3_64_intdigest(piece) != trailer.checksums[index]:
        raise BadSeal(f"piece {index} does not match its checksum")
