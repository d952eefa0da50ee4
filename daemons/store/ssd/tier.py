"""One node's SSD tier: blocks in bucket logs, found again after every kind of stop.

A put is done when its bytes are on disk; a delete is visible at once and done when its tombstone is on disk. The writer
appends, syncs and reclaims; reads run beside it. A disk that fails or is full costs puts and reads with a clear error,
never the index: it is tried again after a rest.
"""

import logging
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from daemons.core.clock import Clock, monotonic
from daemons.core.errors import NotFound, Rejected, Unavailable
from daemons.core.ids import BlockHash, short
from daemons.core.units import format_size
from daemons.store.directory.columns import NO_ROW
from daemons.store.lower.block_record import BlockRecord
from daemons.store.lower.health import Rest, TierHealth
from daemons.store.lower.state import OnDropped, ignore
from daemons.store.lower.tier import LowerTier
from daemons.store.lower.waiting import Waiting, begun
from daemons.store.segment.seal import BadSeal
from daemons.store.ssd.batch_writer import BatchWriter, Shared, fail_appends
from daemons.store.ssd.buckets import Bucket, RandomBits
from daemons.store.ssd.files import BucketDirectory
from daemons.store.ssd.index import Location
from daemons.store.ssd.listing import FOOTER_BYTES
from daemons.store.ssd.log_writer import Append
from daemons.store.ssd.opening import open_blocks
from daemons.store.ssd.reading import StoredBlock
from daemons.store.ssd.record import RecordKind, TombstoneRecord, block_layout
from daemons.store.ssd.settings import SsdCounters, SsdSettings

log = logging.getLogger(__name__)

_EVERY_SEQUENCE = (1 << 64) - 1
_TIGHT_FRACTION = 0.7
_LEAVING_BUCKETS = 2
_SPARE_BUCKETS = 2
"""The one that is written next, and the space that the writer keeps beside it."""
_MAX_READ_ERRORS = 8
"""In a row: one bad sector is no dead disk. One failed write is enough."""


class SsdTier(LowerTier):
    """Opens, and so recovers, when built; raises OSError or ConfigError where that is impossible.

    `on_dropped` hears, on some thread, of blocks that went without anybody asking.
    """

    where = "the SSD"

    def __init__(
        self,
        directory: BucketDirectory,
        settings: SsdSettings,
        *,
        on_dropped: OnDropped = ignore,
        clock: Clock = monotonic,
        random_bits: RandomBits = secrets.randbits,
    ) -> None:
        self.settings = settings
        self.counters = SsdCounters()
        self.is_direct = directory.is_direct
        self._on_dropped = on_dropped
        opened = open_blocks(directory, self.counters, random_bits, settings.delete_log_bytes)
        self._blocks, self._deletes = opened.blocks, opened.deletes
        self._buckets = self._blocks.buckets
        rest_s = settings.rest_s
        shared = Shared(
            clock=clock,
            health=TierHealth("ssd writes", Rest(rest_s, rest_s), clock),
            read_health=TierHealth("ssd reads", Rest(rest_s, rest_s, _MAX_READ_ERRORS), clock),
            settings=settings,
            counters=self.counters,
            blocks=self._blocks,
            deletes=self._deletes,
        )
        self._queue = shared.queue
        self._writer = BatchWriter(shared, opened.sequence, on_dropped)
        self._queued_at_s = 0.0
        self._is_idle = False
        """The writer sleeps until it is woken."""
        super().__init__(settings, shared, self.counters)

    # Writing.

    def delete(self, hashes: Sequence[BlockHash]) -> "Future[bool]":
        """Done when the tombstone is on disk."""
        with self._lock:
            self._refuse_if_closed()
            dropped = set(self._blocks.drop(hashes))
            self.counters.deleted_blocks += len(dropped)
            logged = [
                block_hash
                for block_hash in dict.fromkeys(hashes)
                if self._queue.cancel(block_hash)
                or block_hash in dropped
                or self._queue.may_return(block_hash)
                or self._buckets.unreadable
            ]
            done = self._queue.add_deletes(logged)
            self._wake()
        return done

    def clear(self, namespace: bytes | None = None) -> "Future[bool]":
        """As `delete`, for all blocks of a namespace, or of all of them."""
        kind = RecordKind.CLEAR_ALL if namespace is None else RecordKind.CLEAR
        done = begun()
        with self._lock:
            self._refuse_if_closed()
            dropped = self._blocks.drop_namespace(namespace, _EVERY_SEQUENCE)
            self.counters.deleted_blocks += len(dropped)
            self._queue.cancel_namespace(namespace)
            self._queue.add(Append(TombstoneRecord(kind, 0, namespace=namespace or b""), done=done))
            self._wake()
        return done

    def flush(self, timeout_s: float) -> None:
        """All that was put or deleted before is on disk. Raises what the disk answers, Unavailable when too slow."""
        done = begun()
        with self._lock:
            if self._queue.is_idle:
                return
            self._refuse_if_closed()
            # A record without meaning is the simplest way to stand in line.
            self._queue.add(Append(TombstoneRecord(RecordKind.DELETES, 0), done=done))
            self._wake()
        try:
            done.result(timeout_s)
        except TimeoutError:
            raise Unavailable(f"the SSD did not take what waits within {timeout_s:g} s") from None

    # Reading.

    def hashes(self) -> list[BlockHash]:
        index = self._blocks.index
        with self._lock:
            return [index.hash_of(row) for row in index.rows()]

    def leaving(self) -> list[BlockHash]:
        """The blocks of the files that go next, in the order they lie there; empty while there is space."""
        with self._lock:
            file_bytes = self._buckets.file_bytes
            if file_bytes < _TIGHT_FRACTION * (file_bytes + max(0, self._free_bytes())):
                return []
            index, oldest = self._blocks.index, list(self._buckets.by_id)[:_LEAVING_BUCKETS]
            rows = [row for bucket_id in oldest for row in index.rows_in_bucket(bucket_id)]
            return [index.hash_of(row) for row in rows]

    def mark(self) -> int:
        """That of the open bucket: of what shares it with later blocks nothing goes for them."""
        with self._lock:
            return max(self._buckets.by_id, default=self._buckets.next_id)

    def is_full_since(self, mark: int) -> bool:
        """With room for what waits to be written, and for the bucket that is kept free."""
        with self._lock:
            oldest = self._buckets.oldest
            if oldest is not None and oldest.bucket_id < mark:
                return False
            needed = self._queue.num_bytes + _SPARE_BUCKETS * self.settings.bucket_bytes
            return self._free_bytes() < needed

    def read(
        self, block_hash: BlockHash, target: memoryview, layers: tuple[int, int] | None = None
    ) -> BlockRecord:
        """Fill `target` with the payload, or with layers [first, last) of it, verified; on the caller's thread.

        Room for payload and trailer lets a whole block arrive in one read, trailer and all. Straight from the disk
        where the target's address agrees with the layer's place modulo a page. Raises NotFound, BadSeal (and drops
        the block), Unavailable, Rejected.
        """
        block, location, bucket = self._acquire(block_hash)
        start = location.offset + block_layout(block)[0]
        num_read: int | None = None
        try:
            num_read = StoredBlock(block, bucket.file, start, self.is_direct).read(target, layers)
        except BadSeal as error:
            self._on_bad_block(block_hash, location, error)
            raise
        except OSError as error:
            raise self._on_read_error(block_hash, error) from error
        finally:
            with self._lock:
                self._buckets.release(bucket)
                if num_read is not None:
                    self._state.read_health.on_success()
                    self.counters.read_blocks += 1
                    self.counters.read_bytes += num_read
        return block

    # Life.

    @property
    def num_blocks(self) -> int:
        return len(self._blocks.index)

    @property
    def used_bytes(self) -> int:
        """Of files, so with garbage."""
        with self._lock:
            return self._buckets.file_bytes + self._deletes.file_bytes

    def run_once(self) -> bool:
        """One batch to the disk, and some reclaiming. False when there was nothing to do, or no disk to do it."""
        return self._writer.run_once()

    def check_invariants(self) -> None:
        """O(n)."""
        with self._lock:
            self._blocks.check_invariants()
            self._queue.check_invariants()

    # Steps.

    def _refuse_unfit(self, block: BlockRecord) -> None:
        if Append(block).room_bytes + FOOTER_BYTES > self.settings.bucket_bytes:
            raise Rejected(
                f"a block of {format_size(block.length)} does not fit a bucket of "
                f"{format_size(self.settings.bucket_bytes)}; make the buckets larger"
            )

    def _held(self, block_hash: BlockHash) -> BlockRecord | None:
        found = self._blocks.get(block_hash)
        return found[0] if found is not None else None

    def _waiting(self, block_hash: BlockHash) -> Waiting | None:
        pending = self._queue.pending(block_hash)
        if pending is None:
            return None
        assert isinstance(pending.record, BlockRecord)
        assert pending.done is not None
        return Waiting(pending.record, pending.done)

    @property
    def _queued_bytes(self) -> int:
        return self._queue.num_bytes

    def _queue_put(self, put: Waiting, source: memoryview) -> None:
        self._queue.add(Append(put.block, source, put.done))
        self._wake()

    def _due_s(self) -> float | None:
        """What waits has waited long enough for company. At the end `_end_writing` writes the rest."""
        if self._state.is_closed:
            return None
        if not len(self._queue):
            self._is_idle = True
            return None
        is_enough = self._queue.num_bytes >= self.settings.batch_bytes
        return 0.0 if is_enough else self._queued_at_s + self.settings.commit_delay_s

    def _read_into(self, block_hash: BlockHash, target: memoryview) -> object:
        return self.read(block_hash, target)

    def _end_writing(self, writer: threading.Thread | None) -> None:
        if writer is not None:
            writer.join()
        while len(self._queue) and self.run_once():
            pass

    def _fail_waiting(self, error: Unavailable) -> None:
        with self._lock:
            failed = self._queue.fail([])
        fail_appends(failed, error)

    def _release(self) -> None:
        self._writer.close()
        self._deletes.close()
        self._buckets.close()

    # Inside.

    def _wake(self) -> None:
        """After something was queued. A writer that waits for company is left alone until a batch is full."""
        if self._is_idle:
            self._is_idle = False
            self._queued_at_s = self._state.clock()
            self._lock.notify_all()
        elif self._queue.num_bytes >= self.settings.batch_bytes:
            self._lock.notify_all()

    def _free_bytes(self) -> int:
        """Of the capacity, or of the filesystem where that has less."""
        taken = self._buckets.file_bytes + self._deletes.allotted_bytes
        return min(self.settings.capacity_bytes - taken, self._buckets.directory.free_bytes())

    def _refuse_if_closed(self) -> None:
        """What is queued now nobody would write."""
        if self._state.is_closed:
            raise self._gone

    def _acquire(self, block_hash: BlockHash) -> tuple[BlockRecord, Location, Bucket]:
        """Its bucket's file stays open until it is released."""
        index = self._blocks.index
        with self._lock:
            self._state.read_health.refuse_if_resting()
            row = index.find(block_hash)
            if row == NO_ROW:
                raise NotFound(f"block {short(block_hash)} is not on this node's SSD")
            index.use(row)
            location = index.location(row)
            return index.block(row), location, self._buckets.acquire(location.bucket)

    def _on_bad_block(self, block_hash: BlockHash, location: Location, error: BadSeal) -> None:
        log.error("ssd block dropped block=%s why=%s", short(block_hash), error.message)
        with self._lock:
            found = self._blocks.get(block_hash)
            if found is None or found[1] != location:
                return
            self._blocks.drop([block_hash])
            self._queue.add_bad(block_hash, location.sequence)
            self._wake()
            self.counters.bad_blocks += 1
        self._on_dropped([block_hash], "bad")

    def _on_read_error(self, block_hash: BlockHash, error: OSError) -> Unavailable:
        why = f"the SSD could not read block {short(block_hash)}: {error}"
        log.warning("ssd read failed block=%s why=%s", short(block_hash), error)
        with self._lock:
            self.counters.read_errors += 1
            self._state.read_health.on_failure(why)
        return Unavailable(why)
