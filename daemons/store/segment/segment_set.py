"""The DRAM segments of one node as one: new blocks are spread over them, each by what it has free."""

import contextlib
from collections.abc import Iterator

from daemons.core.errors import Exhausted
from daemons.core.units import format_size
from daemons.store.segment.segment import Segment


class SegmentSet:
    """Segment 0 is always there. One that leaves gives nothing any more, and counts for nothing."""

    def __init__(self, first: Segment) -> None:
        self.first = first
        self._by_number = {first.number: first}
        self._open = [first]
        self._current = first
        self._left_bytes = 0
        """Of a run in the current one: blocks put together lie together."""

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._by_number.values())

    def get(self, number: int) -> Segment | None:
        return self._by_number.get(number)

    def add(self, segment: Segment) -> None:
        assert segment.number not in self._by_number, "numbers are never used twice"
        self._by_number[segment.number] = segment
        self._open = [each for each in self if not each.is_leaving]
        self._left_bytes = 0

    def leave(self, segment: Segment) -> None:
        """From now on nothing new comes into it."""
        segment.is_leaving = True
        self._open = [each for each in self if not each.is_leaving]
        self._current, self._left_bytes = self.first, 0

    def remove(self, segment: Segment) -> None:
        """It holds nothing any more."""
        assert segment.is_leaving, "a segment leaves before it is removed"
        assert not segment.slots.num_allocated, "what a segment holds goes before it"
        del self._by_number[segment.number]

    def allocate(self, length: int) -> tuple[Segment, int]:
        """Where. Raises Exhausted, saying why."""
        if len(self._open) == 1:
            return self.first, self.first.allocate(length)
        if self._left_bytes < length:
            self._current = max(self._open, key=_free_part)
            self._left_bytes = max(length, min(each.slots.slab_bytes for each in self._open))
        by_room = sorted(self._open, key=_free_part, reverse=True)
        for segment in (self._current, *(each for each in by_room if each is not self._current)):
            try:
                offset = segment.allocate(length)
            except Exhausted:
                continue
            self._left_bytes = self._left_bytes - length if segment is self._current else 0
            return segment, offset
        raise Exhausted(self._why_full(length))

    def allocate_roomy(self, length: int) -> tuple[Segment, int]:
        """As that of the slots, where most is free. Raises Exhausted."""
        for segment in sorted(self._open, key=_free_part, reverse=True):
            with contextlib.suppress(Exhausted):
                return segment, segment.slots.allocate_roomy(length)
        raise Exhausted(self._why_full(length))

    @property
    def slab_bytes(self) -> int:
        """No block that is longer fits anywhere."""
        return max(segment.slots.slab_bytes for segment in self._open)

    @property
    def used_bytes(self) -> int:
        return sum(segment.slots.used_bytes for segment in self._open)

    @property
    def capacity_bytes(self) -> int:
        return sum(segment.slots.capacity_bytes for segment in self._open)

    @property
    def usable_bytes(self) -> int:
        return sum(segment.slots.usable_bytes for segment in self._open)

    def _why_full(self, length: int) -> str:
        if length > self.slab_bytes:
            return (
                f"a block of {format_size(length)} exceeds the slabs of {format_size(self.slab_bytes)} of the largest "
                "segment; lend a larger one"
            )
        return (
            f"no slot of {format_size(length)}: {format_size(self.used_bytes)} of {format_size(self.capacity_bytes)} "
            f"in {len(self._open)} segments used, the rest is free in slots of other sizes or slab ends"
        )


def _free_part(segment: Segment) -> float:
    return segment.slots.free_bytes / segment.slots.capacity_bytes
