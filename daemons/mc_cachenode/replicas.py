"""The node's index: which block lies in which slot, writing or sealed. The truth that the master's directory follows.

Loop thread only; workers write a slot's bytes between `begin` and `seal` or `abandon`, and nobody else does. A slot
that is held (the SSD's writer reads it) is not used again before it is released. With an IndexLog what is sealed and
freed here is recorded, and `flush` is called before anyone is told.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash
from daemons.core.units import format_size, format_usage
from daemons.mc_cachenode.remembered import Remembered
from daemons.mc_cachenode.replica import VERSION, Replica, replica_of, wall_ms
from daemons.protocol.block import (
    BlockMeta,
    DeadName,
    SealedBlock,
    Tier,
    Tombstone,
)
from daemons.store.index.format import SealedRecord
from daemons.store.index.log import IndexLog
from daemons.store.segment.seal import BadSeal, Trailer, parse_trailer, trailer_length
from daemons.store.segment.segment import Segment
from daemons.store.segment.segment_set import SegmentSet

_VOID_BYTES = 8
"""Of a trailer: without its magic no reader takes it."""


class ReplicaTable:
    """Blocks by hash, least recently put first."""

    tier: Tier = "dram"

    def __init__(self, segment: Segment) -> None:
        self.segments = SegmentSet(segment)
        self.on_room: Callable[[], object] = lambda: None
        """Called when a slot is free again."""
        self.reserved_bytes = 0
        """Of the segment, for blocks that are staged; the others do without."""
        self.staged_bytes = 0
        """Of slots of blocks that are staged."""
        self._replicas: OrderedDict[BlockHash, Replica] = OrderedDict()
        self._num_writing = 0
        self.writing_bytes = 0
        self._num_sealed: Counter[int] = Counter()
        """By number of segment."""
        self._indexes: dict[int, IndexLog] = {}
        self.remembered = Remembered()
        self._replaced: dict[BlockHash, Replica] = {}
        """The sealed version of an object whose next one is being written; it is read until that is sealed."""

    def restore(self, records: Sequence[SealedRecord], segment: Segment | None = None) -> int:
        """Take over what an earlier process sealed in this segment; how many of the records were not true.

        Of two that claim one place the later is right, of two places of one block the newer version. Looks at trailers
        only: readers verify the payloads, and what they find bad is dropped then.
        """
        segment = segment or self.segments.first
        by_age = sorted(records, key=lambda record: record.created_ms)
        found = [r for record in by_age if (r := self._find(record, segment)) is not None]
        found.reverse()
        granted = segment.slots.restore((r.offset, r.length + r.trailer_bytes) for r in found)
        taken = [r for r, is_granted in zip(found, granted, strict=True) if is_granted]
        has_others = bool(self._replicas)
        for replica in reversed(taken):
            self._num_sealed[segment.number] += 1
            other = self._replicas.get(replica.meta.hash)
            if other is not None and other.version >= replica.version:
                self._drop(replica)  # killed when it had moved
                continue
            if other is not None:
                self._drop(other)
            self._replicas[replica.meta.hash] = replica
        if has_others:
            by_time = sorted(self._replicas.items(), key=lambda item: item[1].created_ms)
            self._replicas = OrderedDict(by_time)
        return len(records) - len(taken)

    def keep_in(self, index: IndexLog, segment: Segment | None = None) -> None:
        """Record from now on what is sealed and freed in this segment."""
        number = segment.number if segment is not None else 0
        self._indexes[number] = index
        if not number:
            self.remembered.keep_in(index)  # which is of no segment

    def forget_index(self, segment: Segment) -> None:
        """The segment is on its way out, and nothing is in it."""
        self._indexes.pop(segment.number, None)

    def flush(self) -> None:
        """Before anyone is told what was sealed or freed: from then on a crash changes nothing about it."""
        for index in self._indexes.values():
            index.flush()

    def report(self, hashes: Iterable[BlockHash]) -> list[SealedBlock]:
        """Those of them that are sealed, as the master is told."""
        now_ms = wall_ms()
        found = (self._replicas.get(block_hash) for block_hash in hashes)
        return [r.told(max(0, now_ms - r.created_ms)) for r in found if r and r.state == "sealed"]

    def usage(self) -> tuple[int, int]:
        """(bytes used, bytes that can be), both without what is kept for staged blocks."""
        segments = self.segments
        used_bytes = segments.used_bytes - min(self.staged_bytes, self.reserved_bytes)
        return max(0, used_bytes), segments.usable_bytes - self.reserved_bytes

    def free_dead(self, key: BlockHash, version: int) -> bool:
        """Free this version or an older one; one being written is refused when it is to be sealed."""
        old = self._replaced.get(key)
        if old is not None and old.version <= version:
            del self._replaced[key]
            self._drop(old)
        replica = self._replicas.get(key)
        return replica is not None and replica.version <= version and self.free(key)

    def dead_names(self) -> list[DeadName]:
        return self.remembered.dead_names()

    def is_pinned_hard(self, block_hash: BlockHash, *, now_s: float) -> bool:
        pin = self.remembered.pins.find(block_hash, now_s=now_s)
        return pin is not None and pin.is_hard

    def pinned_bytes_by_segment(self) -> Counter[int]:
        """Of hard pins."""
        found: Counter[int] = Counter()
        for block_hash in self.remembered.pins.hard(now_s=time.monotonic()):
            replica = self._readable(block_hash)
            if replica is not None:
                found[replica.segment.number] += replica.length + replica.trailer_bytes
        return found

    def tombstones(self) -> list[Tombstone]:
        return self.remembered.tombstones()

    def hashes(self) -> list[BlockHash]:
        return [replica.meta.hash for replica in self.sealed()]

    def record_of(
        self, block_hash: BlockHash, segment: Segment | None = None
    ) -> SealedRecord | None:
        """None when it is not sealed, or not in this segment."""
        replica = self._readable(block_hash)
        if replica is None or (segment is not None and replica.segment is not segment):
            return None
        return SealedRecord(replica.describe(), replica.created_ms)

    def num_sealed_in(self, segment: Segment) -> int:
        return self._num_sealed[segment.number]

    @property
    def num_sealed(self) -> int:
        return len(self._replicas) - self._num_writing + len(self._replaced)

    def get(self, block_hash: BlockHash) -> Replica | None:
        return self._replicas.get(block_hash)

    def is_replaced(self, block_hash: BlockHash) -> bool:
        """Whether a next version of it is being written."""
        return block_hash in self._replaced

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
        if self.reserved_bytes:
            self.refuse_reserved(length)
        return self.begin_staged(meta, length, num_layers, version=version)

    def begin_staged(
        self, meta: BlockMeta, length: int, num_layers: int, *, version: int
    ) -> Replica:
        """As `begin`, in the reserved part too: the caller keeps to its size."""
        place = self._allocate(length + trailer_length(num_layers))
        return self._begin_at(place, meta, length, num_layers, version=version)

    def begin_roomy(
        self, meta: BlockMeta, length: int, num_layers: int, *, version: int
    ) -> Replica:
        """As `begin_staged`, in a slot of another size that is too large: it is not to be sealed there."""
        place = self.segments.allocate_roomy(length + trailer_length(num_layers))
        return self._begin_at(place, meta, length, num_layers, version=version)

    def _begin_at(
        self,
        place: tuple[Segment, int],
        meta: BlockMeta,
        length: int,
        num_layers: int,
        *,
        version: int,
    ) -> Replica:
        segment, offset = place
        old = self._replicas.get(meta.hash)
        if old is not None:
            assert old.state == "sealed"
            self._replaced[meta.hash] = old
        replica = Replica(meta, segment, offset, length, num_layers, version=version)
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
        sealed = self._log_sealed(replica)
        self._num_sealed[replica.segment.number] += 1
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

    def refuse_reserved(self, length: int) -> None:
        """Raises Exhausted where so much more would leave less than is kept for staged blocks."""
        if not self.reserved_bytes:
            return
        used_bytes, capacity_bytes = self.usage()
        if used_bytes + length > capacity_bytes:
            usage = format_usage(used_bytes, self.segments.usable_bytes)
            raise Exhausted(
                f"no room for {format_size(length)}: {usage} are in use, "
                f"and {format_size(self.reserved_bytes)} of the whole are kept for blocks on their way from the SSD"
            )

    def stored(self, replica: Replica) -> memoryview:
        """Its slot: payload and trailer."""
        end = replica.offset + replica.length + replica.trailer_bytes
        return replica.segment.view[replica.offset : end]

    def begin_move(self, replica: Replica) -> Replica:
        """Another slot for it, in a segment that stays; `end_move` or `abandon_move` must follow. Raises Exhausted."""
        segment, offset = self._allocate(replica.length + replica.trailer_bytes)
        self.hold(replica)
        return Replica(
            replica.meta,
            segment,
            offset,
            replica.length,
            replica.num_layers,
            seal_checksum=replica.seal_checksum,
            created_ms=replica.created_ms,
            version=replica.version,
        )

    def end_move(self, old: Replica, moved: Replica) -> bool:
        """The bytes are there, and true: from now on it is read there. False when it was freed or replaced meanwhile.

        Recorded there first: a kill in between leaves it in both, and the next start with one of them.
        """
        if self._readable(old.meta.hash) is not old:
            self.abandon_move(old, moved)
            return False
        moved.state, moved.wanted = "sealed", old.wanted
        held = self._replaced if old.meta.hash in self._replaced else self._replicas
        held[old.meta.hash] = moved
        self._num_sealed[moved.segment.number] += 1
        self._log_sealed(moved)
        self.flush()
        self._drop(old)
        self.release(old)
        return True

    def abandon_move(self, old: Replica, moved: Replica) -> None:
        """The slot that was to hold it is free again."""
        moved.state = "gone"
        moved.segment.free(moved.offset)
        self.release(old)
        self.on_room()

    def hold(self, replica: Replica) -> None:
        """Its slot keeps its bytes until `release`, also when the block is freed."""
        replica.num_holds += 1

    def release(self, replica: Replica) -> None:
        replica.num_holds -= 1
        if not replica.num_holds and replica.state == "gone":
            replica.segment.free(replica.offset)
            self.on_room()

    def remember_wanted(self, hashes: Iterable[BlockHash], count: int) -> None:
        """For later masters."""
        for block_hash in hashes:
            replica = self._replicas.get(block_hash)
            if replica is None or replica.state != "sealed" or replica.wanted == count:
                continue
            replica.wanted = count
            self._log_sealed(replica)
        self.flush()

    def trailer(self, replica: Replica) -> Trailer:
        """Read back from the segment. Raises BadSeal when memory no longer holds what was sealed."""
        return parse_trailer(replica.packed_trailer, replica.seal_checksum, replica.meta.hash)

    def _allocate(self, length: int) -> tuple[Segment, int]:
        """Raises Exhausted."""
        for index in self._indexes.values():
            index.flush_frees()
        return self.segments.allocate(length)

    def _log_sealed(self, replica: Replica) -> SealedBlock:
        sealed = replica.describe()
        index = self._indexes.get(replica.segment.number)
        if index is not None:
            index.add_sealed(SealedRecord(sealed, replica.created_ms))
        return sealed

    def _find(self, record: SealedRecord, segment: Segment) -> Replica | None:
        """None unless the slot ends with the trailer that this record speaks of."""
        replica = replica_of(record, segment)
        if self.remembered.is_dead(replica.meta.hash, replica.version):
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
        self._num_sealed[replica.segment.number] -= 1
        self._give_up_slot(replica)
        index = self._indexes.get(replica.segment.number)
        if index is not None:
            index.add_freed(replica.meta.hash, replica.offset)

    def _remove(self, replica: Replica) -> None:
        del self._replicas[replica.meta.hash]
        self._give_up_slot(replica)

    def _give_up_slot(self, replica: Replica) -> None:
        replica.state = "gone"
        if replica.meta.name:
            replica.packed_trailer[:_VOID_BYTES] = bytes(_VOID_BYTES)
        if not replica.num_holds:
            replica.segment.free(replica.offset)
            self.on_room()
