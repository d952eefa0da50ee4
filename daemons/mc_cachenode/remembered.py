"""What a node remembers of blocks that need not be here: clears, dead versions of objects, pins.

Logged, for later lives and later masters. Loop thread only.
"""

import time
from collections.abc import Sequence

from daemons.core.ids import BlockHash, Incarnation
from daemons.mc_cachenode.pins import NodePins
from daemons.mc_cachenode.replica import wall_ms
from daemons.protocol.block import BlockFilter, DeadName, Tombstone
from daemons.protocol.pin import Pin
from daemons.store.directory.names import DeadNames
from daemons.store.directory.tombstones import Tombstones
from daemons.store.index.format import ClearedRecord, DeadRecord, PinRecord
from daemons.store.index.log import IndexLog


class Remembered:
    """Bounded by what its parts forget with time."""

    def __init__(self) -> None:
        self.pins = NodePins()
        self._tombstones = Tombstones()
        self._dead = DeadNames()
        self._index: IndexLog | None = None

    def keep_in(self, index: IndexLog) -> None:
        """Record from now on."""
        self._index = index

    def clear(self, wanted: BlockFilter, at_ms: int) -> None:
        """A tombstone for later masters; what it matches here is freed one by one."""
        if self._tombstones.add(wanted, at_ms / 1000) and self._index is not None:
            self._index.add_cleared(ClearedRecord(wanted, at_ms))
            self._index.flush()

    def die(self, key: BlockHash, version: int, at_ms: int) -> bool:
        """Logged, but not flushed; False when it was known. What is here of it `ReplicaTable.free_dead` frees."""
        if not self._dead.add(key, version, at_ms / 1000):
            return False
        if self._index is not None:
            self._index.add_dead(DeadRecord(key, version, at_ms))
        return True

    def is_dead(self, key: BlockHash, version: int) -> bool:
        return version <= self._dead.version_of(key)

    def dead_names(self) -> list[DeadName]:
        now_ms = wall_ms()
        return [
            DeadName(key=r.key, version=r.version, age_ms=max(0, now_ms - r.at_ms))
            for r in self.dead()
        ]

    def dead(self) -> list[DeadRecord]:
        self._dead.expire(wall_ms() / 1000)
        return [DeadRecord(key, version, round(at_s * 1000)) for key, version, at_s in self._dead]

    def hold_pins(self, pins: Sequence[Pin], incarnation: Incarnation) -> None:
        """All that the master has pinned here."""
        changed = self.pins.hold(pins, incarnation, now_s=time.monotonic(), now_ms=wall_ms())
        if self._index is not None:
            for record in changed:
                self._index.add_pin(record)
            self._index.flush()

    def restore_pins(self, records: Sequence[PinRecord]) -> None:
        """What an earlier process logged."""
        self.pins.restore(records, now_s=time.monotonic(), now_ms=wall_ms())

    def pinned(self) -> list[PinRecord]:
        return self.pins.records(now_ms=wall_ms())

    def tombstones(self) -> list[Tombstone]:
        now_ms = wall_ms()
        return [
            Tombstone(filter=record.filter, age_ms=max(0, now_ms - record.at_ms))
            for record in self.cleared()
        ]

    def cleared(self) -> list[ClearedRecord]:
        self._tombstones.expire(wall_ms() / 1000)
        return [ClearedRecord(wanted, round(at_s * 1000)) for wanted, at_s in self._tombstones]
