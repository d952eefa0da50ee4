"""How a segment of a size is cut, for the cache node that cuts it and for whoever chooses the size."""

from typing import Final

from daemons.core.units import MIB

SLOT_ALIGN: Final = 4096
MIN_SLAB: Final = 4 * MIB
MAX_SLAB: Final = 256 * MIB
_SLABS_PER_SEGMENT: Final = 16


def default_slab_bytes(capacity_bytes: int) -> int:
    """A sixteenth of the segment within 4..256 MiB, so that many classes fit and ends waste little."""
    slab = capacity_bytes // _SLABS_PER_SEGMENT // SLOT_ALIGN * SLOT_ALIGN
    return min(max(slab, MIN_SLAB), MAX_SLAB)


def slot_bytes(length: int) -> int:
    """What an object of `length` takes."""
    return -(-length // SLOT_ALIGN) * SLOT_ALIGN


def least_segment_bytes(length: int) -> int | None:
    """The smallest segment that takes an object of `length`; None where none does."""
    slot = slot_bytes(length)
    if slot > MAX_SLAB:
        return None
    return slot if slot <= MIN_SLAB else slot * _SLABS_PER_SEGMENT
