"""The node's index: which block lies in which slot, writing or sealed. The truth that the master's directory follows.

Loop thread only; workers write a slot's bytes between `begin` and `seal` or `abandon`, and nobody else does. A slot
that is held (the SSD's writer reads it) is not used again before it is released. With an IndexLog what is sealed and
freed here is recorded, and `flush` is called before anyone is told.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash, Incarnation
from daemons.core.units import format_size
from daemons.mc_cachenode.pins import NodePins
from daemons.protocol.block import (
    BlockFilter,
    BlockMeta,
    DeadName,
    SealedBlock,
    Tier,
    Tombstone,
)
from daemons.protocol.pin import Pin
from daemons.store.index_format import ClearedRecord, DeadRecord, PinRecord, SealedRecord
from daemons.store.index_log import IndexLog
from daemons.store.names import DeadNames
from daemons.store.seal import BadSeal, Trailer, parse_trailer, trailer_length
from daemons.store.segment import Segment
from daemons.store.tombstones import Tombstones

VERSION = 1
"""Of a content-hashed block: its bytes never change, so neither does this."""

_VOID_BYTES = 8
"""Of a trailer: without its magic no reader takes it."""

_MAX_SCANNED = 10_000
"""Oldest blocks looked at for one of the right size class."""

_MAX_EVICTIONS = 64
"""Blocks given up for one allocation before it is refused after all."""


@dataclass(slots=True, eq=False)
class Replica:
    """One block in one slot; the payload, then the trailer."""

    meta: BlockMeta
    offset: int
    length: int
    num_layers: int
    state: Literal["writing", "sealed", "gone"] = "writing"
    seal_checksum: int = 0
    created_ms: int = 0
    """When it was sealed, since 1970; kept over restarts and in lower tiers."""
    version: int = VERSION
    num_holds: int = 0
    wanted: int = 0
    """Replicas it should have; 0: as many as the pool wants."""

    @property
    def trailer_bytes(self) -> int:
        return trailer_length(self.num_layers)

    def describe(self, age_ms: int = 0) -> SealedBlock:
        """What the master is told; the index keeps the time itself."""
        return SealedBlock(
            meta=self.meta,
            offset=self.offset,
            length=self.length,
            trailer_bytes=self.trailer_bytes,
            version=self.version,
            seal_checksum=self.seal_checksum,
            num_layers=self.num_layers,
            age_ms=age_ms,
            wanted=self.wanted,
        )


class ReplicaTable:
    """Blocks by hash, least recently put first."""

    tier: Tier = "dram"

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.on_room: Callable[[], object] = lambda: None
        """Called when a slot is free again."""
        self.reserved_bytes = 0
        """Of the segment, for blocks that are staged; the others do without."""
        self.staged_bytes = 0
        """Of slots of blocks that are staged."""
        self._replicas: OrderedDict[BlockHash, Replica] = OrderedDict()
        self._num_writing = 0
        self.writing_bytes = 0
        self._index: IndexLog | None = None
        self._tombstones = Tombstones()
        self.pins = NodePins()
        self._dead = DeadNames()
        self._replaced: dict[BlockHash, Replica] = {}
        """The sealed version of an object whose next one is being written; it is read until that is sealed."""

    def restore(self, records: Sequence[SealedRecord]) -> int:
        """Take over what an earlier process sealed in this segment; how many of the records were not true.

        Of two that claim one place the later is right. Looks at trailers only: readers verify the payloads, and
        what they find bad is dropped then.
        """
        by_age = sorted(records, key=lambda record: record.created_ms)
        found = [replica for record in by_age if (replica := self._find(record)) is not None]
        found.reverse()
        granted = self.segment.slots.restore((r.offset, r.length + r.trailer_bytes) for r in found)
        for replica, is_granted in reversed(list(zip(found, granted, strict=True))):
            if is_granted:
                self._replicas[replica.meta.hash] = replica
        return len(records) - len(self._replicas)

    def keep_in(self, index: IndexLog) -> None:
        """Record from now on."""
        self._index = index

    def flush(self) -> None:
        """Before anyone is told what was sealed or freed: from then on a crash changes nothing about it."""
        if self._index is not None:
            self._index.flush()

    def report(self, hashes: Iterable[BlockHash]) -> list[SealedBlock]:
        """Those of them that are sealed, as the master is told."""
        now_ms = wall_ms()
        found = (self._replicas.get(block_hash) for block_hash in hashes)
        return [
            r.describe(max(0, now_ms - r.created_ms)) for r in found if r and r.state == "sealed"
        ]

    def usage(self) -> tuple[int, int]:
        """(bytes used, bytes that can be), both without what is kept for staged blocks."""
        slots = self.segment.slots
        used_bytes = slots.used_bytes - min(self.staged_bytes, self.reserved_bytes)
        return used_bytes, slots.usable_bytes - self.reserved_bytes

    def remember_clear(self, wanted: BlockFilter, at_ms: int) -> None:
        """A tombstone for later masters; what it matches here is freed one by one."""
        if self._tombstones.add(wanted, at_ms / 1000) and self._index is not None:
            self._index.add_cleared(ClearedRecord(wanted, at_ms))
            self._index.flush()

    def remember_dead(self, key: BlockHash, version: int, at_ms: int) -> bool:
        """Logged, but not flushed; False when it was known. What is here of it is `free_dead`'s to free."""
        if not self._dead.add(key, version, at_ms / 1000):
            return False
        if self._index is not None:
            self._index.add_dead(DeadRecord(key, version, at_ms))
        return True

    def free_dead(self, key: BlockHash, version: int) -> bool:
        """Free this version or an older one; one being written is refused when it is to be sealed."""
        old = self._replaced.get(key)
        if old is not None and old.version <= version:
            del self._replaced[key]
            self._drop(old)
        replica = self._replicas.get(key)
        return replica is not None and replica.version <= version and self.free(key)

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
        """All that the master has pinned here; logged, so that they outlive this process and the master's."""
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

    def hashes(self) -> list[BlockHash]:
        return [replica.meta.hash for replica in self.sealed()]

    def record_of(self, block_hash: BlockHash) -> SealedRecord | None:
        replica = self._readable(block_hash)
        return None if replica is None else SealedRecord(replica.describe(), replica.created_ms)

    @property
    def num_sealed(self) -> int:
        return len(self._replicas) - self._num_writing + len(self._replaced)

    def get(self, block_hash: BlockHash) -> Replica | None:
        return self._replicas.get(block_hash)

    def sealed(self) -> Iterator[Replica]:
        replaced = self._replaced.get if self._replaced else lambda _: None
        for key, replica in self._replicas.items():
            if replica.state == "sealed":
                yield replica
            elif (old := replaced(key)) is not None:
                yield old

    def touch(self, block_hash: BlockHash) -> None:
        self._replicas.move_to_end(block_hash)

    def read_bytes_per_s(self) -> int:
        """Readers know how fast DRAM is."""
        return 0

    def begin(
        self, meta: BlockMeta, length: int, num_layers: int, *, version: int = VERSION
    ) -> Replica:
        """A slot for a block that is not here, or is in an older version. Raises Exhausted."""
        self._refuse_reserved(length)
        return self.begin_staged(meta, length, num_layers, version=version)

    def begin_staged(
        self, meta: BlockMeta, length: int, num_layers: int, *, version: int
    ) -> Replica:
        """As `begin`, in the reserved part too: the caller keeps to its size."""
        if self._index is not None:
            self._index.flush_frees()
        offset = self.segment.allocate(length + trailer_length(num_layers))
        old = self._replicas.get(meta.hash)
        if old is not None:
            assert old.state == "sealed"
            self._replaced[meta.hash] = old
        replica = Replica(meta, offset, length, num_layers, version=version)
        self._replicas[meta.hash] = replica
        self._num_writing += 1
        self.writing_bytes += length
        return replica

    def seal(
        self, replica: Replica, seal_checksum: int, *, created_ms: int | None = None
    ) -> SealedBlock:
        """The worker has written payload and trailer: from now on it can be read.

        `created_ms` is that of the copy it was made of, so that a clear since then finds it older.
        """
        assert replica.state == "writing"
        replica.state = "sealed"
        replica.seal_checksum = seal_checksum
        replica.created_ms = wall_ms() if created_ms is None else created_ms
        self._num_writing -= 1
        self.writing_bytes -= replica.length
        sealed = replica.describe()
        if self._index is not None:
            self._index.add_sealed(SealedRecord(sealed, replica.created_ms))
        old = self._replaced.pop(replica.meta.hash, None)
        if old is not None:
            self.flush()  # or a crash right now would leave neither
            self._drop(old)
        return sealed

    def abandon(self, replica: Replica) -> None:
        """The pull failed and its worker is done with the slot."""
        assert replica.state == "writing"
        self._num_writing -= 1
        self.writing_bytes -= replica.length
        self._remove(replica)
        old = self._replaced.pop(replica.meta.hash, None)
        if old is not None:
            self._replicas[old.meta.hash] = old

    def free(self, block_hash: BlockHash) -> bool:
        """False when there is no sealed block of that name: one being written is not the master's to free."""
        replica = self._replicas.get(block_hash)
        if replica is None or replica.state != "sealed":
            return False
        del self._replicas[block_hash]
        self._drop(replica)
        return True

    def _refuse_reserved(self, length: int) -> None:
        used_bytes, capacity_bytes = self.usage()
        if self.reserved_bytes and used_bytes + length > capacity_bytes:
            raise Exhausted(
                f"no room for {format_size(length)}: {format_size(used_bytes)} of {format_size(capacity_bytes)} are in "
                f"use, and {format_size(self.reserved_bytes)} more are kept for blocks on their way from the SSD"
            )

    def stored(self, replica: Replica) -> memoryview:
        """Its slot: payload and trailer."""
        return self.segment.view[
            replica.offset : replica.offset + replica.length + replica.trailer_bytes
        ]

    def hold(self, replica: Replica) -> None:
        """Its slot keeps its bytes until `release`, also when the block is freed."""
        replica.num_holds += 1

    def release(self, replica: Replica) -> None:
        replica.num_holds -= 1
        if not replica.num_holds and replica.state == "gone":
            self.segment.free(replica.offset)
            self.on_room()

    def remember_wanted(self, hashes: Iterable[BlockHash], count: int) -> None:
        """For later masters."""
        for block_hash in hashes:
            replica = self._replicas.get(block_hash)
            if replica is None or replica.state != "sealed" or replica.wanted == count:
                continue
            replica.wanted = count
            if self._index is not None:
                self._index.add_sealed(SealedRecord(replica.describe(), replica.created_ms))
        self.flush()

    def make_room(
        self,
        length: int,
        num_layers: int,
        leaves_later: Callable[[Replica], bool] = lambda _: False,
    ) -> list[BlockHash]:
        """Give up the least recently put blocks until a slot of this size is free; what went is returned.

        `leaves_later` says of each whether a lower tier takes it first, and frees it then: that makes no room yet.
        Of pinned ones the soft come last and the hard never. It may not be enough: the caller's next `begin` says so.
        """
        slots = self.segment.slots
        needed = length + trailer_length(num_layers)
        freed: list[BlockHash] = []
        if needed > slots.slab_bytes:
            return freed
        oldest = self._may_go()
        # One block of the same size class makes the slot; of another class it takes a whole slab of them.
        fitting = (r for r in oldest if slots.is_same_class(r.length + r.trailer_bytes, needed))
        same = next(fitting, None)
        for replica in [same] if same else oldest[:_MAX_EVICTIONS]:
            block_hash = replica.meta.hash
            if leaves_later(replica):
                continue
            self.free(block_hash)
            freed.append(block_hash)
            try:
                self._refuse_reserved(length)
                self.segment.free(self.segment.allocate(needed))
            except Exhausted:
                continue
            return freed
        return freed

    def _may_go(self) -> list[Replica]:
        """Those to give up first at the front."""
        now_s = time.monotonic()
        pinned = [
            (self.pins.find(replica.meta.hash, now_s=now_s), replica)
            for replica in islice(self.sealed(), _MAX_SCANNED)
            if not replica.num_holds and replica.meta.hash not in self._replaced
        ]
        soft = [replica for pin, replica in pinned if pin is not None and not pin.is_hard]
        return [replica for pin, replica in pinned if pin is None] + soft

    def trailer(self, replica: Replica) -> Trailer:
        """Read back from the segment. Raises BadSeal when memory no longer holds what was sealed."""
        start = replica.offset + replica.length
        packed = self.segment.view[start : start + replica.trailer_bytes]
        return parse_trailer(packed, replica.seal_checksum, replica.meta.hash)

    def _find(self, record: SealedRecord) -> Replica | None:
        """None unless the slot ends with the trailer that this record speaks of."""
        replica = _replica_of(record)
        if self.is_dead(replica.meta.hash, replica.version):
            return None
        try:
            trailer = self.trailer(replica)
        except BadSeal:
            return None
        shape = (trailer.length, trailer.num_layers, trailer.version)
        is_same = shape == (replica.length, replica.num_layers, record.block.version)
        return replica if is_same else None

    def _readable(self, block_hash: BlockHash) -> Replica | None:
        replica = self._replicas.get(block_hash)
        if replica is not None and replica.state != "sealed":
            replica = self._replaced.get(block_hash)
        return replica

    def _drop(self, replica: Replica) -> None:
        """A sealed one that no table names any more. An object's trailer is voided: who kept its place asks anew."""
        self._give_up_slot(replica)
        if self._index is not None:
            self._index.add_freed(replica.meta.hash, replica.offset)

    def _remove(self, replica: Replica) -> None:
        del self._replicas[replica.meta.hash]
        self._give_up_slot(replica)

    def _give_up_slot(self, replica: Replica) -> None:
        replica.state = "gone"
        if replica.meta.name:
            start = replica.offset + replica.length
            self.segment.view[start : start + _VOID_BYTES] = bytes(_VOID_BYTES)
        if not replica.num_holds:
            self.segment.free(replica.offset)
            self.on_room()


def wall_ms() -> int:
    """Since 1970: the one clock that goes on while a node is away."""
    return time.time_ns() // 1_000_000


def _replica_of(record: SealedRecord) -> Replica:
    block = record.block
    return Replica(
        meta=block.meta,
        offset=block.offset,
        length=block.length,
        num_layers=block.num_layers,
        state="sealed",
        seal_checksum=block.seal_checksum,
        created_ms=record.created_ms,
        version=block.version,
        wanted=block.wanted,
    )
