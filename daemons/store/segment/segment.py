"""A node's DRAM segment: shared memory cut into slots by size class.

Slabs of one size are handed to size classes and cut into equal slots, so that allocate and free are O(1), blocks of
one model lie at a constant stride, and an empty slab serves any class again. Who allocates owns the slot until it
frees it: freeing while a copy into it runs is the caller's error.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from daemons.config.segment_cut import SLOT_ALIGN, default_slab_bytes, slot_bytes
from daemons.core.errors import Exhausted
from daemons.core.units import format_size
from daemons.transfer.memory import SharedMemory, allocate_shared


@dataclass(slots=True)
class _Slab:
    start: int
    size: int
    slot_bytes: int = 0
    """0: not given to a class."""
    free_slots: list[int] = field(default_factory=list)
    """Offsets; the last is taken next."""
    num_used: int = 0


class SlabAllocator:
    """Offsets in [0, capacity). Pure bookkeeping; not thread safe."""

    def __init__(self, capacity_bytes: int, slab_bytes: int | None = None) -> None:
        slab_bytes = slab_bytes or default_slab_bytes(capacity_bytes)
        self.capacity_bytes = capacity_bytes
        self.slab_bytes = slab_bytes
        self.used_bytes = 0
        self._wasted_bytes = 0
        self._slabs = [
            _Slab(start, min(slab_bytes, capacity_bytes - start))
            for start in range(0, capacity_bytes, slab_bytes)
        ]
        self._empty = list(range(len(self._slabs) - 1, -1, -1))
        self._partial: dict[int, dict[int, None]] = {}
        """slot_bytes -> slabs of that class with a free slot, oldest first."""
        self._length_by_offset: dict[int, int] = {}

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.used_bytes

    @property
    def usable_bytes(self) -> int:
        """Capacity less the ends of slabs that their slots leave over; reached exactly when no slot is free."""
        return self.capacity_bytes - self._wasted_bytes

    @property
    def num_allocated(self) -> int:
        return len(self._length_by_offset)

    def slot_bytes(self, length: int) -> int:
        """What an allocation of `length` takes."""
        return slot_bytes(length)

    def slab_of(self, offset: int) -> int:
        """Its number."""
        return offset // self.slab_bytes

    def slot_bytes_of(self, slab: int) -> int:
        """0 where it is free for any size."""
        return self._slabs[slab].slot_bytes

    def num_used_in(self, slab: int) -> int:
        """Slots."""
        return self._slabs[slab].num_used

    def is_same_class(self, length: int, other: int) -> bool:
        return self.slot_bytes(length) == self.slot_bytes(other)

    def allocate(self, length: int) -> int:
        """An offset aligned to a page. Raises Exhausted, saying why."""
        slot = self.slot_bytes(max(length, 1))
        partial = self._partial.setdefault(slot, {})
        if not partial and not self._open_slab(slot):
            raise Exhausted(self._why_full(length))
        return self._take(slot, length)

    def allocate_roomy(self, length: int) -> int:
        """A slot that is larger than it need be, the smallest that is free: for what is here for a moment only, as
        `restore` finds no block in such a place. Raises Exhausted."""
        slot = self.slot_bytes(max(length, 1))
        larger = [other for other, slabs in self._partial.items() if other > slot and slabs]
        if not larger:
            raise Exhausted(self._why_full(length))
        return self._take(min(larger), length)

    def is_roomy(self, offset: int) -> bool:
        """Whether it is one of `allocate_roomy`."""
        length = self._length_by_offset[offset]
        return self._slabs[self.slab_of(offset)].slot_bytes != self.slot_bytes(max(length, 1))

    def free(self, offset: int) -> None:
        length = self._length_by_offset.pop(offset, None)
        assert length is not None, f"offset {offset} is not allocated"
        index = self.slab_of(offset)
        slab = self._slabs[index]
        slab.num_used -= 1
        self.used_bytes -= slab.slot_bytes
        partial = self._partial[slab.slot_bytes]
        if slab.num_used:
            slab.free_slots.append(offset)
            partial[index] = None
            return
        partial.pop(index, None)
        self._wasted_bytes -= slab.size % slab.slot_bytes
        slab.slot_bytes = 0
        slab.free_slots = []
        self._empty.append(index)

    def restore(self, wanted: Iterable[tuple[int, int]]) -> list[bool]:
        """Allocate these very (offset, length) again, as before a restart; of two that overlap the first stays.

        Only on a fresh allocator. False for each that cannot be: its offset is no slot of its size.
        """
        assert not self._length_by_offset
        granted = [self._claim(offset, length) for offset, length in wanted]
        self._empty = [index for index in self._empty if not self._slabs[index].slot_bytes]
        for index, slab in enumerate(self._slabs):
            slot = slab.slot_bytes
            if not slot:
                continue
            slots = range(slab.start, slab.start + slab.size - slot + 1, slot)
            slab.free_slots = [x for x in reversed(slots) if x not in self._length_by_offset]
            self._wasted_bytes += slab.size % slot
            partial = self._partial.setdefault(slot, {})
            if slab.free_slots:
                partial[index] = None
        return granted

    def check_invariants(self) -> None:
        """For tests: no overlap, every byte accounted for. O(n)."""
        end = 0
        for offset in sorted(self._length_by_offset):
            assert offset >= end
            slab = self._slabs[offset // self.slab_bytes]
            assert (offset - slab.start) % slab.slot_bytes == 0
            assert self._length_by_offset[offset] <= slab.slot_bytes
            end = offset + slab.slot_bytes
            assert end <= slab.start + slab.size
        assert self.used_bytes == sum(s.num_used * s.slot_bytes for s in self._slabs)
        assert self._wasted_bytes == sum(s.size % s.slot_bytes for s in self._slabs if s.slot_bytes)
        assert len(self._length_by_offset) == sum(s.num_used for s in self._slabs)
        assert sorted(self._empty) == [i for i, s in enumerate(self._slabs) if not s.slot_bytes]
        for slot, partial in self._partial.items():
            assert sorted(partial) == [
                i for i, s in enumerate(self._slabs) if s.slot_bytes == slot and s.free_slots
            ]
        for slab in self._slabs:
            assert len(slab.free_slots) == len(set(slab.free_slots))
            assert not set(slab.free_slots) & self._length_by_offset.keys()
            if slab.slot_bytes:
                assert len(slab.free_slots) + slab.num_used == slab.size // slab.slot_bytes

    def _take(self, slot: int, length: int) -> int:
        """Of a class that has a free slot."""
        partial = self._partial[slot]
        index = next(iter(partial))
        slab = self._slabs[index]
        offset = slab.free_slots.pop()
        slab.num_used += 1
        if not slab.free_slots:
            del partial[index]
        self._length_by_offset[offset] = length
        self.used_bytes += slot
        return offset

    def _claim(self, offset: int, length: int) -> bool:
        slot = self.slot_bytes(max(length, 1))
        index, within = divmod(offset, self.slab_bytes)
        if not 0 <= index < len(self._slabs):
            return False
        slab = self._slabs[index]
        is_slot = within % slot == 0 and within + slot <= slab.size
        if not is_slot or slab.slot_bytes not in (0, slot) or offset in self._length_by_offset:
            return False
        slab.slot_bytes = slot
        slab.num_used += 1
        self._length_by_offset[offset] = length
        self.used_bytes += slot
        return True

    def _open_slab(self, slot: int) -> bool:
        """Give an empty slab to a class. The last slab may be shorter, so the next one is tried too."""
        for position in range(len(self._empty) - 1, max(len(self._empty) - 3, -1), -1):
            index = self._empty[position]
            slab = self._slabs[index]
            num_slots = slab.size // slot
            if num_slots:
                del self._empty[position]
                slab.slot_bytes = slot
                self._wasted_bytes += slab.size % slot
                # Ascending as they are taken: blocks put together lie at a constant stride.
                slab.free_slots = [slab.start + i * slot for i in range(num_slots - 1, -1, -1)]
                self._partial[slot][index] = None
                return True
        return False

    def _why_full(self, length: int) -> str:
        wanted = format_size(length)
        if self.slot_bytes(length) > self.slab_bytes:
            return (
                f"a block of {wanted} exceeds the segment's slabs of {format_size(self.slab_bytes)}; "
                "lend a larger segment"
            )
        return (
            f"no slot of {wanted}: {format_size(self.used_bytes)} of {format_size(self.capacity_bytes)} used, "
            f"{format_size(self.free_bytes)} free in slots of other sizes or slab ends"
        )


class Segment:
    """The allocator over real memory."""

    def __init__(
        self, memory: SharedMemory, slab_bytes: int | None = None, *, number: int = 0
    ) -> None:
        self.memory = memory
        self.number = number
        """Among those of one node."""
        self.is_leaving = False
        self.slots = SlabAllocator(memory.size_bytes, slab_bytes)
        self.array = memory.array
        self.view = memory.view

    @classmethod
    def create(
        cls,
        capacity_bytes: int,
        path: Path | None = None,
        *,
        slab_bytes: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        number: int = 0,
    ) -> "Segment":
        """Allocate all of it now; with `path` a file that replaces one left by a dead process."""
        capacity_bytes = capacity_bytes // SLOT_ALIGN * SLOT_ALIGN
        memory = allocate_shared("mooncake-segment", capacity_bytes, path, progress)
        return cls(memory, slab_bytes, number=number)

    def allocate(self, length: int) -> int:
        return self.slots.allocate(length)

    def free(self, offset: int) -> None:
        self.slots.free(offset)

    def close(self) -> None:
        """The file goes, unless it is kept; peers that still map it keep the pages until they notice."""
        self.memory.close()
