"""Blocks of objects as they come over a connection: one request brings many, and each piece is verified while the next
is under way.

Trailers come first, so that each piece is hashed as it arrives, in the CPU's cache.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from daemons.client.objects.format import FOOTER_BYTES, PIECE_BYTES, Footer, parse_footer
from daemons.protocol.block import BlockLocation
from daemons.protocol.segment import Grant
from daemons.store.segment.seal import BadSeal, Trailer, parse_trailer
from daemons.transfer import ByteArray, Read, ReadBatch, TransferEngine, contiguous


class _Piece(NamedTuple):
    """Verified once the body is here up to `ready`; `behind` is what of the footer it ends with."""

    ready: int
    part: memoryview
    behind: memoryview
    checksum: int


class Arriving:
    """One block under way. What its body holds counts once it `is_good`."""

    def __init__(
        self, at: BlockLocation, body: ByteArray, *, footer_bytes: int = FOOTER_BYTES
    ) -> None:
        """`body` has room for exactly what lies before the footer; a chunk has none. Raises BadSeal."""
        if at.length != body.nbytes + footer_bytes or at.trailer_bytes <= 0:
            raise BadSeal(f"a block of {at.length} bytes where {body.nbytes} were expected")
        self.footer: Footer | None = None
        self.why = "its bytes did not arrive"
        self._at = at
        self._body = body
        self._footer_bytes = footer_bytes
        self._ending = np.empty(footer_bytes + at.trailer_bytes, np.uint8)
        self._is_open = False
        self._left: list[_Piece] = []

    @property
    def is_good(self) -> bool:
        """All of it is here and verified."""
        return self._is_open and not self._left

    def ending(self) -> tuple[Read, Callable[[], None]]:
        """What is to be read first, and what to call when it is here."""
        body, ending = self._body, self._ending
        return Read.into(
            contiguous(self._at.offset + body.nbytes, ending.nbytes), ending
        ), self._open

    def pieces(self) -> Iterator[tuple[Read, Callable[[], None]]]:
        """What is to be read next, in order; the same of each."""
        start, body = self._at.offset, self._body
        for begin in range(0, body.nbytes, PIECE_BYTES):
            end = min(begin + PIECE_BYTES, body.nbytes)
            target = contiguous(begin, end - begin)
            yield (
                Read(contiguous(start + begin, end - begin), body, target),
                functools.partial(self._verify, end),
            )

    def _open(self) -> None:
        footer_bytes, size = self._footer_bytes, self._body.nbytes
        body, ending = self._body.data, self._ending.data
        try:
            trailer = trailer_of(self._at, ending[footer_bytes:])
            self.footer = parse_footer(ending[:footer_bytes]) if footer_bytes else None
        except BadSeal as error:
            self.why = error.message
            return
        for number, checksum in enumerate(trailer.checksums):
            start, stop = number * trailer.piece_bytes, (number + 1) * trailer.piece_bytes
            behind = ending[max(0, start - size) : max(0, min(stop - size, footer_bytes))]
            ready = min(stop, size) if start < size else 0
            self._left.append(_Piece(ready, body[start:stop], behind, checksum))
        self._left.sort(key=lambda piece: -piece.ready)
        self._is_open = True
        self._verify(0)

    def _verify(self, end: int) -> None:
        """Every piece that is complete now that the body is here up to `end`. Short: it runs with empty caches."""
        left = self._left
        while left and left[-1].ready <= end:
            _, part, behind, checksum = left[-1]
            if behind:
                digest = xxhash.xxh3_64(part)
                digest.update(behind)
                found = digest.intdigest()
            else:
                found = xxhash.xxh3_64_intdigest(part)
            if found != checksum:
                self.why = "a piece does not match its checksum"
                return
            left.pop()


def receive(
    engine: TransferEngine,
    opened: tuple[BlockLocation, Grant | None],
    arriving: Sequence[Arriving],
    timeout_s: float,
    stall_s: float | None = None,
) -> None:
    """Blocks of the region of that one, which its grant opens too; what does not verify is not `is_good` then.

    Raises what the transfer raises; what had arrived by then stays good.
    """
    # Python between two large copies finds its own data thrown out by them: all it can do is done before the first.
    calls = [each.ending() for each in arriving]
    calls += [call for each in arriving for call in each.pieces()]
    arrived = [call for _, call in calls]
    engine.run(
        ReadBatch(
            opened[0].region,
            [read for read, _ in calls],
            timeout_s=timeout_s,
            on_read=lambda index: arrived[index](),
            capability=opened[1],
            stall_s=stall_s,
        )
    )


def trailer_of(at: BlockLocation, packed: memoryview) -> Trailer:
    """Raises BadSeal."""
    trailer = parse_trailer(packed, at.seal_checksum, at.hash)
    if trailer.length != at.length or not trailer.piece_bytes:
        raise BadSeal("the trailer is of a block of another shape")
    return trailer
