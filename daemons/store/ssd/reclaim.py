"""Making room: which bucket goes, and what of it is written again.

A bucket that is mostly garbage is compacted: its live blocks are copied to the open bucket, whatever they are. Else the
oldest bucket is evicted, and of its blocks those that were read since they were written get a second chance, up to a
fraction of the bucket. Per-block LRU would leave holes or rewrite for every choice it makes; FIFO throws away what is
hot. On a Zipf(0.9) trace over 5 times what fits: hits 0.56 with FIFO, 0.62 with this, 0.62 with LRU, for 1.46 bytes
written per byte put (a quarter kept: 0.61 and 1.29). tests/unit/store/ssd/test_reclaim.py measures it.

A copy has a new sequence and is on disk before the old file goes, so a crash at any point leaves one or two of it.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from daemons.core.ids import BlockHash, short
from daemons.store.lower import BlockRecord
from daemons.store.lower.state import OnDropped
from daemons.store.segment.seal import BadSeal
from daemons.store.ssd.aligned import aligned_buffer, read_into
from daemons.store.ssd.block_map import BlockMap
from daemons.store.ssd.buckets import Bucket
from daemons.store.ssd.index import Location
from daemons.store.ssd.listing import Listing, read_footer, room_bytes
from daemons.store.ssd.log_writer import Append, LogWriter
from daemons.store.ssd.record import block_layout
from daemons.store.ssd.recovery import scan_bucket, verify_block
from daemons.store.ssd.settings import SsdCounters
from daemons.store.ssd.write_queue import WriteQueue

log = logging.getLogger(__name__)

_GARBAGE_FRACTION = 0.5
"""A bucket with more of it is compacted: each byte copied frees at least one."""


@dataclass(frozen=True, slots=True)
class BucketUse:
    """What the choice is made of."""

    bucket_id: int
    num_bytes: int
    live_bytes: int


@dataclass(frozen=True, slots=True)
class Victim:
    """`is_compacted`: all its live blocks are kept; else it is evicted, and only the oldest bucket ever is."""

    bucket_id: int
    is_compacted: bool


def choose_victim(uses: Sequence[BucketUse], room: int) -> Victim | None:
    """`uses` oldest first, without the open bucket, which has `room` for copies. None when there is no other."""
    if not uses:
        return None
    best = max(uses, key=lambda use: (use.num_bytes - use.live_bytes) / max(use.num_bytes, 1))
    garbage = best.num_bytes - best.live_bytes
    if garbage >= _GARBAGE_FRACTION * best.num_bytes and best.live_bytes <= room:
        return Victim(best.bucket_id, is_compacted=True)
    return Victim(uses[0].bucket_id, is_compacted=False)


@dataclass(slots=True, eq=False)
class _Work:
    """A bucket on its way out. `left`: what is still to be copied, in the order it lies there."""

    bucket: Bucket
    is_compacted: bool
    left: deque[tuple[BlockRecord, Location]]
    tombstones: deque[Append]


@dataclass(slots=True)
class Reclaimer:
    """The writer's thread only, but for what `lock` guards: the map. `on_dropped` is called without it."""

    blocks: BlockMap
    writer: LogWriter
    queue: WriteQueue
    counters: SsdCounters
    lock: threading.Condition
    kept_fraction: float
    on_dropped: OnDropped
    _work: _Work | None = None

    def step(self, max_bytes: int) -> bool:
        """Copy up to about so much, or take a bucket's file away. False when there is nothing to reclaim.

        Raises OSError; the same step can be tried again.
        """
        work = self._work or self._begin()
        if work is None:
            return False
        self._work = work
        if work.left:
            self._copy(work, max_bytes)
        elif work.tombstones:
            self._carry(work)
        else:
            self._finish(work)
        return True

    def drop_empty(self) -> None:
        """Take away the files in which nothing lives and that hold nothing off. Raises OSError."""
        while True:
            with self.lock:
                buckets = self.blocks.buckets
                held = self._work.bucket if self._work else None
                # What died of a tombstone that is not on disk still hides its older versions.
                is_settled = not self.queue.tombstones
                empty = next(
                    (
                        bucket
                        for bucket in buckets.by_id.values()
                        if not bucket.num_live
                        and bucket not in (self.writer.head, held)
                        and (bucket is buckets.oldest or (is_settled and not bucket.has_tombstones))
                    ),
                    None,
                )
            if empty is None:
                return
            self._remove(empty)

    def _begin(self) -> _Work | None:
        with self.lock:
            head = self.writer.head
            uses = [
                BucketUse(bucket.bucket_id, bucket.file_bytes, bucket.live_bytes)
                for bucket in self.blocks.buckets.by_id.values()
                if bucket is not head
            ]
            victim = choose_victim(uses, self.writer.room)
            if victim is None:
                return None
            bucket = self.blocks.buckets.by_id[victim.bucket_id]
            left = self._survivors(bucket, victim)
        return _Work(bucket, victim.is_compacted, left, self._tombstones(bucket))

    def _survivors(self, bucket: Bucket, victim: Victim) -> deque[tuple[BlockRecord, Location]]:
        index = self.blocks.index
        rows = index.rows_in_bucket(bucket.bucket_id)
        if not victim.is_compacted:
            budget = min(int(self.kept_fraction * bucket.file_bytes), self.writer.room)
            kept = set()
            for row in sorted(rows, key=index.uses, reverse=True):
                size = index.room_bytes(row)
                if index.uses(row) and size <= budget:
                    budget -= size
                    kept.add(row)
            rows = [row for row in rows if row in kept]
        return deque((index.block(row), index.location(row)) for row in rows)

    def _tombstones(self, bucket: Bucket) -> deque[Append]:
        """Those that still hold something off: a tombstone is needed while there are older buckets."""
        if not bucket.has_tombstones or bucket is self.blocks.buckets.oldest:
            return deque()
        listing = read_footer(bucket, is_direct=self._is_direct)
        if listing is None:
            scan = scan_bucket(bucket, is_direct=self._is_direct, is_last=False)
            listing = Listing.of(scan.records)
        return deque(Append(tombstone) for tombstone in listing.tombstones)

    def _copy(self, work: _Work, max_bytes: int) -> None:
        copies: list[Append] = []
        room = min(self.writer.room, max_bytes)
        num_seen = 0
        for block, location in work.left:
            size = room_bytes(block)
            if size > self.writer.room and not copies:
                self._give_up(work)
                return
            if size > room and copies:
                break
            num_seen += 1
            source = self._read(work, block, location)
            if source is not None:
                copies.append(Append(block, source, moved_from=location))
                room -= size
        if copies:
            self._append(copies)
        for _ in range(num_seen):
            work.left.popleft()

    def _append(self, copies: list[Append]) -> None:
        locations = self.writer.append(copies)
        with self.lock:
            for copy, location in zip(copies, locations, strict=True):
                assert isinstance(copy.record, BlockRecord)
                assert copy.moved_from is not None
                self.counters.copied_blocks += 1
                self.counters.copied_bytes += copy.num_bytes
                self.blocks.move(copy.record.meta.hash, copy.moved_from, location)

    def _read(self, work: _Work, block: BlockRecord, location: Location) -> memoryview | None:
        """Verified; what rotted is not spread. None: it went in the meantime, or is bad."""
        with self.lock:
            found = self.blocks.get(block.meta.hash)
        if found is None or found[1] != location:
            return None
        start = location.offset + block_layout(block)[0]
        stored = aligned_buffer(block.stored_bytes)[: block.stored_bytes]
        try:
            read_into(work.bucket.file, start, stored, is_direct=self._is_direct)
            verify_block(block, stored)
        except (BadSeal, OSError) as error:
            log.warning("ssd block lost block=%s why=%s", short(block.meta.hash), error)
            self._drop_bad(block.meta.hash, location)
            return None
        return stored

    def _drop_bad(self, block_hash: BlockHash, location: Location) -> None:
        with self.lock:
            found = self.blocks.get(block_hash)
            if found is None or found[1] != location:
                return
            self.blocks.drop([block_hash])
            self.queue.add_bad(block_hash, location.sequence)
            self.counters.bad_blocks += 1
        self.on_dropped([block_hash], "bad")

    def _give_up(self, work: _Work) -> None:
        """Puts were faster and filled the open bucket. An eviction goes on without; a compaction is begun again."""
        work.left.clear()
        if work.is_compacted:
            self._work = None

    def _carry(self, work: _Work) -> None:
        tombstones = []
        room = self.writer.room
        for tombstone in work.tombstones:
            room -= tombstone.room_bytes
            if room < 0:
                break
            tombstones.append(tombstone)
        if not tombstones:
            # The oldest bucket has none to carry, so going for it instead always makes room.
            self._work = self._oldest_instead()
            return
        self.writer.append(tombstones)
        for _ in tombstones:
            work.tombstones.popleft()

    def _oldest_instead(self) -> _Work | None:
        with self.lock:
            oldest = self.blocks.buckets.oldest
            if oldest is None or oldest is self.writer.head:
                return None
            return _Work(oldest, is_compacted=False, left=deque(), tombstones=deque())

    def _finish(self, work: _Work) -> None:
        if not self._settle(work.bucket):
            self._work = self._oldest_instead()
            return
        self._evict(work)
        self._remove(work.bucket)
        self._work = None
        with self.lock:
            self.queue.evicting.clear()
        log.debug(
            "ssd bucket reclaimed bucket=%d compacted=%s",
            work.bucket.bucket_id,
            work.is_compacted,
        )

    def _evict(self, work: _Work) -> None:
        """The blocks, then the file: from the first try on to remove it, a loss of power may take them, so nobody is
        told any more that they are here. Until it is gone for good they may come back, so a delete is logged.
        """
        with self.lock:
            evicted = self.blocks.drop_bucket(work.bucket.bucket_id)
            self.queue.evicting.update(evicted)
            self.counters.evicted_blocks += len(evicted)
        if evicted:
            self.on_dropped(evicted, "evicted")

    def _settle(self, bucket: Bucket) -> bool:
        """Before a bucket goes, what was deleted from it must be so on disk, or an older bucket's version of it would
        be found after a crash: tombstones that still wait are written, and written again in their turn. False: no room.
        """
        with self.lock:
            if bucket is self.blocks.buckets.oldest:
                return True
            waiting = [Append(tombstone) for tombstone in self.queue.tombstones]
        if sum(append.room_bytes for append in waiting) > self.writer.room:
            return False
        if waiting:
            self.writer.append(waiting)
        return True

    def _remove(self, bucket: Bucket) -> None:
        """A file in which nothing lives. Raises OSError."""
        self.blocks.buckets.unlink(bucket)
        with self.lock:
            self.blocks.buckets.forget(bucket)
            self.counters.reclaimed_buckets += 1

    @property
    def _is_direct(self) -> bool:
        return self.blocks.buckets.directory.is_direct
