"""Memory that cache nodes pull values from: registered regions, an arena for small values, the value itself for large.

A source keeps its bytes until the put was answered. One that was not is voided by its generation before its memory is
used again, so that a late pull seals nothing.
"""

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from daemons.core.errors import Exhausted, NotFound, TransferError
from daemons.core.units import KIB, MIB
from daemons.protocol.block import MAX_INLINE_BYTES
from daemons.protocol.segment import Generation, RegionRef, Source, Strided
from daemons.store.segment.segment import SlabAllocator
from daemons.transfer import ByteArray, GenerationTable, TransferEngine, allocate_shared
from daemons.transfer.buffers import Buffer, as_bytes

ARENA_BYTES: Final = 64 * MIB
_ALWAYS_COPIED: Final = 64 * KIB
"""Up to here a copy costs less than a node's look into memory that it cannot map, as most that is registered."""
_MAX_COPIED: Final = MIB
"""Up to here a copy is cheaper than telling everyone of new memory."""
_MAX_SPARE_BYTES: Final = 2 * MIB
"""Of each size."""
_NUM_GUARDS: Final = 1024


@dataclass(slots=True)
class PutMemory:
    """What one put call uses; `release` when it was answered, `void` when it was not."""

    guard: int
    offsets: list[tuple[int, int]] = field(default_factory=list)
    """Slots of the arena: bytes, and where."""
    regions: list[RegionRef] = field(default_factory=list)
    values: list[ByteArray] = field(default_factory=list)
    """Kept alive."""


class SourceMemory:
    """Thread safe."""

    def __init__(self, engine: TransferEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._arena = allocate_shared("mooncake-store", ARENA_BYTES)
        self._array = self._arena.array
        self._region = engine.register(self._arena)
        self._slots = SlabAllocator(ARENA_BYTES, 4 * MIB)
        self._spare: dict[int, list[int]] = {}
        """Slots to be used again, by size: giving the last one of a slab back, and asking anew, costs a slab's list."""
        self._guards = GenerationTable(engine, _NUM_GUARDS)
        self._free_guards = deque(range(_NUM_GUARDS))
        self._registered: dict[int, tuple[ByteArray, RegionRef]] = {}
        self.nothing = Source(region=self._region, ranges=Strided(offset=0, row_bytes=0))
        """Of what comes with the message."""
        self.max_inline_bytes = MAX_INLINE_BYTES
        """Of the values of one put; 0 once a node has refused some, as those of earlier releases do."""

    def register(self, memory: Buffer) -> RegionRef:
        """Values in here are put, and read into, without a copy on this side."""
        array = as_bytes(memory)
        region = self._engine.register(memory)
        with self._lock:
            self._registered[region.region_id] = (array, region)
        return region

    def deregister(self, region: RegionRef) -> None:
        with self._lock:
            if self._registered.pop(region.region_id, None) is None:
                raise NotFound(f"region {region.region_id} was not registered with this store")
        self._engine.deregister(region)

    def find(self, value: ByteArray) -> tuple[RegionRef, int] | None:
        """The registered region that holds all of it, and where."""
        start = int(value.ctypes.data)
        with self._lock:
            for array, region in self._registered.values():
                offset = start - int(array.ctypes.data)
                if offset >= 0 and offset + value.nbytes <= array.nbytes:
                    return region, offset
        return None

    def open(self) -> PutMemory:
        with self._lock:
            if not self._free_guards:
                raise Exhausted(f"{_NUM_GUARDS} puts are under way", retry_after_ms=50)
            return PutMemory(self._free_guards.popleft())

    def add(self, memory: PutMemory, value: ByteArray) -> Source:
        """Make a value readable for nodes, by a copy or where it lies."""
        memory.values.append(value)
        is_small = value.nbytes <= _ALWAYS_COPIED
        found = self._copy(memory, value) if is_small else None
        if found is None and self._registered and value.nbytes:
            found = self.find(value)
        if found is None and not is_small and value.nbytes <= _MAX_COPIED:
            found = self._copy(memory, value)
        if found is None:
            try:
                region = self._engine.register(value)
            except TransferError as error:
                raise TransferError(
                    f"{error.message}; a value that overlaps a registered buffer must lie in it whole"
                ) from error
            memory.regions.append(region)
            found = region, 0
        region, offset = found
        return Source(
            region=region,
            ranges=Strided(offset=offset, row_bytes=value.nbytes),
            generation=self._guard(memory),
        )

    def release(self, memory: PutMemory) -> None:
        with self._lock:
            for size, offset in memory.offsets:
                spare = self._spare.setdefault(size, [])
                if len(spare) * size < _MAX_SPARE_BYTES:
                    spare.append(offset)
                else:
                    self._slots.free(offset)
            self._free_guards.append(memory.guard)
        for region in memory.regions:
            self._engine.deregister(region)
        memory.values.clear()

    def void(self, memory: PutMemory) -> None:
        """Somebody may still pull: what they bring is not used."""
        self._guards.advance(memory.guard)
        self.release(memory)

    def close(self) -> None:
        self._guards.close()
        self._engine.deregister(self._region)
        self._array = np.empty(0, np.uint8)
        self._arena.close()

    def _copy(self, memory: PutMemory, value: ByteArray) -> tuple[RegionRef, int] | None:
        """None where the arena is full of values that are being put."""
        size = self._slots.slot_bytes(max(1, value.nbytes))
        with self._lock:
            spare = self._spare.get(size)
            try:
                offset = spare.pop() if spare else self._allocate(size)
            except Exhausted:
                return None
            memory.offsets.append((size, offset))
        np.copyto(self._array[offset : offset + value.nbytes], value)
        return self._region, offset

    def _allocate(self, size: int) -> int:
        """Raises Exhausted when there is none even without the spare ones."""
        try:
            return self._slots.allocate(size)
        except Exhausted:
            for offsets in self._spare.values():
                for offset in offsets:
                    self._slots.free(offset)
            self._spare.clear()
            return self._slots.allocate(size)

    def _guard(self, memory: PutMemory) -> Generation:
        return self._guards.guard(memory.guard)
