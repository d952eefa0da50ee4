"""Many values out of mapped memory at once: first all trailers, then all bytes.

Python between two large copies finds its own data thrown out by them, and takes several times as long.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import xxhash

from daemons.client.objects.format import FOOTER_BYTES, Footer, parse_footer
from daemons.core.units import KIB
from daemons.protocol.block import BlockLocation
from daemons.store.segment.seal import BadSeal, parse_trailer
from daemons.transfer import ByteArray, TransferEngine

_STEP_BYTES: Final = 256 * KIB


class _Piece(NamedTuple):
    """`behind`: what of the footer the piece ends with."""

    value: int
    target: ByteArray
    source: ByteArray
    behind: ByteArray
    checksum: int


def read_near(
    engine: TransferEngine, wanted: Sequence[tuple[BlockLocation, ByteArray]]
) -> list[Footer | None]:
    """The footer of each value that is in its target now, verified; None: read it in the usual way."""
    footers: list[Footer | None] = [None] * len(wanted)
    pieces: list[_Piece] = []
    mapped: dict[tuple[int, int], tuple[ByteArray, Callable[[], bool]] | None] = {}
    for index, (at, target) in enumerate(wanted):
        region = at.region.address.epoch, at.region.region_id
        if region not in mapped:
            mapped[region] = engine.mapped(at.region)
        near = mapped[region]
        if near is None:
            continue
        try:
            footers[index] = _prepare(index, at, target, near[0], pieces)
        except BadSeal:
            continue
    for index, part, source, behind, checksum in pieces:
        if _copy_and_hash(part, source, behind) != checksum:
            footers[index] = None
    if not all(near[1]() for near in mapped.values() if near is not None):
        return [None] * len(wanted)
    return footers


def _copy_and_hash(part: ByteArray, source: ByteArray, behind: ByteArray) -> int:
    """Of what is in `part` now and what lies `behind` it: each step is hashed while the CPU's cache has it."""
    digest = xxhash.xxh3_64()
    for start in range(0, source.nbytes, _STEP_BYTES):
        step = part[start : start + _STEP_BYTES]
        np.copyto(step, source[start : start + _STEP_BYTES])
        digest.update(step.data)
    digest.update(behind.data)
    return digest.intdigest()


def _prepare(
    index: int, at: BlockLocation, target: ByteArray, memory: ByteArray, pieces: list[_Piece]
) -> Footer | None:
    """Raises BadSeal; adds nothing to `pieces` unless the value fits the target exactly."""
    body_bytes, end = at.length - FOOTER_BYTES, at.offset + at.length + at.trailer_bytes
    is_inside = at.offset >= 0 and at.trailer_bytes >= 0 and end <= memory.nbytes
    if not is_inside or body_bytes != target.nbytes or not target.flags.writeable:
        return None
    stored = memory[at.offset : end]
    ending = stored[body_bytes:].copy()
    trailer = parse_trailer(ending[FOOTER_BYTES:].data, at.seal_checksum, at.hash)
    footer = parse_footer(ending[:FOOTER_BYTES].data)
    piece = trailer.piece_bytes
    if footer.chunk_bytes or trailer.length != at.length or not piece:
        return None
    for number, checksum in enumerate(trailer.checksums):
        start, stop = number * piece, min((number + 1) * piece, at.length)
        behind = ending[max(0, start - body_bytes) : max(0, stop - body_bytes)]
        pieces.append(
            _Piece(
                index, target[start:stop], stored[start : min(stop, body_bytes)], behind, checksum
            )
            if start < body_bytes
            else _Piece(index, target[:0], stored[:0], behind, checksum)
        )
    return footer
