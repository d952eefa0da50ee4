"""One node's SSD tier: blocks in bucket logs, found again after every kind of stop.

A put is done when its bytes are on disk; a delete is visible at once and done when its tombstone is on disk. One
writer (`run_once`, by a thread of its own after `start`) appends, syncs and reclaims; reads run beside it. A disk that
fails or is full costs puts and reads with a clear error, never the index: it is tried again after a rest.
"""

import logging
import secrets
import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import Future

from daemons.core.clock import Clock, monotonic
from daemons.core.errors import Conflict, Exhausted, McError, NotFound, Rejected, Unavailable
from daemons.core.ids import BlockHash, short
from daemons.core.units import format_size
from daemons.store.block_table import NO_ROW
from daemons.store.copy_workers import CopyWorkers
from daemons.store.seal import BadSeal
from daemons.store.ssd.batch_writer import BatchWriter, OnDropped, Shared, fail_appends
from daemons.store.ssd.buckets import Bucket, RandomBits
from daemons.store.ssd.files import BucketDirectory
from daemons.store.ssd.health import DiskHealth
from daemons.store.ssd.index import Location
from daemons.store.ssd.listing import FOOTER_BYTES
from daemons.store.ssd.log_writer import Append, begun
from daemons.store.ssd.opening import open_blocks
from daemons.store.ssd.reading import StoredBlock
from daemons.store.ssd.record import BlockRecord, RecordKind, TombstoneRecord, block_layout
from daemons.store.ssd.settings import SsdCounters, SsdSettings
from daemons.store.ssd.write_queue import WriteQueue

log = logging.getLogger(__name__)

_EVERY_SEQUENCE = (1 << 64) - 1
_RETRY_AFTER_MS = 50
_TIGHT_FRACTION = 0.7
_LEAVING_BUCKETS = 2
_GONE = "this node's SSD tier has ended"


def _ignore(_: Sequence[BlockHash], __: str) -> None:
    pass


class SsdTier:
    """Opens, and so recovers, when built; raises OSError or ConfigError where that is impossible.

    `on_dropped` hears, on some thread, of blocks that went without anybody asking.
    """

    def __init__(
        self,
        directory: BucketDirectory,
        settings: SsdSettings,
        *,
        on_dropped: OnDropped = _ignore,
        clock: Clock = monotonic,
        random_bits: RandomBits = secrets.randbits,
    ) -> None:
        self.settings = settings
        self.counters = SsdCounters()
        self.is_direct = directory.is_direct
        self._clock = clock
        self._on_dropped = on_dropped
        opened = open_blocks(directory, self.counters, random_bits, settings.delete_log_bytes)
        self._blocks, self._deletes = opened.blocks, opened.deletes
        self._buckets = self._blocks.buckets
        self._lock = threading.Condition(threading.Lock())
        self._queue = WriteQueue()
        self._health = DiskHealth("writes", settings.rest_s, clock)
        self._read_health = DiskHealth("reads", settings.rest_s, clock)
        """A disk that is full or cannot be written may well be read."""
        shared = Shared(
            self._lock,
            settings,
            self.counters,
            self._blocks,
            self._queue,
            self._health,
            self._deletes,
        )
        self._writer = BatchWriter(shared, opened.sequence, on_dropped, clock)
        self._queued_at_s = 0.0
        self._is_idle = False
        """The writer sleeps until it is woken."""
        self._is_closed = False
        self._reads: set[Future[None]] = set()
        self._workers = CopyWorkers(settings.read_workers, settings.max_queued_reads)
        self._thread: threading.Thread | None = None

    # Writing.

    def put(self, block: BlockRecord, source: memoryview) -> "Future[bool]":
        """True when it is on disk, False when it was deleted before. `source` (payload, trailer) stays until then.

        Raises Exhausted when too much waits or the filesystem is full, Unavailable while the disk rests, Conflict
        for other bytes of the same version, Rejected for a block larger than a bucket. The future raises likewise.
        """
        done = begun()
        append = Append(block, source, done)
        if append.room_bytes + FOOTER_BYTES > self.settings.bucket_bytes:
            raise Rejected(
                f"a block of {format_size(block.length)} does not fit a bucket of "
                f"{format_size(self.settings.bucket_bytes)}; make the buckets larger"
            )
        assert len(source) >= block.stored_bytes
        with self._lock:
            found = self._blocks.get(block.meta.hash)
            if found is not None and _is_stored(found[0], block):
                done.set_result(True)
                return done
            pending = self._queue.pending(block.meta.hash)
            if pending is not None:
                return _join(pending, block)
            self._refuse_if_full(append.num_bytes)
            self._queue.add(append)
            self._wake()
        return done

    def delete(self, hashes: Sequence[BlockHash]) -> "Future[bool]":
        """Gone for readers when this returns, for good when the future is done. It raises where the disk failed;
        the tombstone is then tried again until `close`. Raises Unavailable after that.
        """
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

    def get(self, block_hash: BlockHash) -> BlockRecord | None:
        """Only looks: no sign of use."""
        with self._lock:
            found = self._blocks.get(block_hash)
        return found[0] if found is not None else None

    def hashes(self) -> list[BlockHash]:
        index = self._blocks.index
        with self._lock:
            return [index.hash_of(row) for row in index.rows()]

    def leaving(self) -> list[BlockHash]:
        """The blocks of the files that go next, in the order they lie there; empty while there is space."""
        with self._lock:
            if self._buckets.file_bytes < _TIGHT_FRACTION * self.settings.capacity_bytes:
                return []
            index, oldest = self._blocks.index, list(self._buckets.by_id)[:_LEAVING_BUCKETS]
            rows = [row for bucket_id in oldest for row in index.rows_in_bucket(bucket_id)]
            return [index.hash_of(row) for row in rows]

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
                    self._read_health.on_read()
                    self.counters.read_blocks += 1
                    self.counters.read_bytes += num_read
        return block

    def submit_read(
        self,
        block_hash: BlockHash,
        target: memoryview,
        layers: tuple[int, int] | None = None,
        *,
        reader: Hashable = None,
    ) -> "Future[None]":
        """`read` by a worker; readers take turns. Raises Exhausted when too many wait."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()

        def job() -> None:
            try:
                self.read(block_hash, target, layers)
            except Exception as error:  # noqa: BLE001  # whoever waits gets it, a bug too
                self._end_read(done, error)
            else:
                self._end_read(done, None)

        with self._lock:
            self._reads.add(done)
        try:
            self._workers.submit(reader, job)
        except McError:
            with self._lock:
                self._reads.discard(done)
            raise
        return done

    # Life.

    @property
    def num_blocks(self) -> int:
        return len(self._blocks.index)

    @property
    def used_bytes(self) -> int:
        """Of files, so with garbage."""
        with self._lock:
            return self._buckets.file_bytes + self._deletes.file_bytes

    @property
    def capacity_bytes(self) -> int:
        return self.settings.capacity_bytes

    def counts(self) -> dict[str, int]:
        return self.counters.as_dict()

    @property
    def why_resting(self) -> str | None:
        """Why puts or reads are refused now; None when they are not."""
        resting = (health.why for health in (self._health, self._read_health) if health.is_resting)
        return next(resting, None)

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run_forever, name="mc-ssd-writer", daemon=True)
        self._thread.start()

    def run_forever(self) -> None:
        """Until `close`. A bug ends the writing: whoever waits is told, and so is whoever comes later."""
        try:
            while self._wait():
                self.run_once()
        except Exception:
            log.exception("ssd writer ended")
            with self._lock:
                self._is_closed = True
                failed = self._queue.fail([])
            fail_appends(failed, Unavailable(_GONE))

    def run_once(self) -> bool:
        """One batch to the disk, and some reclaiming. False when there was nothing to do, or no disk to do it."""
        return self._writer.run_once()

    def close(self) -> None:
        """Writes what waits if the disk lets it; what does not get there raises Unavailable to its waiters."""
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join()
        while len(self._queue) and self.run_once():
            pass
        self._workers.close()
        gone = Unavailable(_GONE)
        for read in list(self._reads):
            self._end_read(read, gone)
        fail_appends(self._queue.fail([]), gone)
        self._writer.close()
        self._deletes.close()
        self._buckets.close()

    def check_invariants(self) -> None:
        """For tests, while the writer is at rest. O(n)."""
        with self._lock:
            self._blocks.check_invariants()
            self._queue.check_invariants()

    def _wait(self) -> bool:
        """Until there is something to write that has waited long enough for company. False at the end."""
        settings = self.settings
        with self._lock:
            while not self._is_closed:
                if not len(self._queue):
                    self._is_idle = True
                    self._lock.wait()
                    continue
                is_enough = self._queue.num_bytes >= settings.batch_bytes
                due_s = 0.0 if is_enough else self._queued_at_s + settings.commit_delay_s
                left_s = max(due_s, self._health.resume_s) - self._clock()
                if left_s <= 0:
                    return True
                self._lock.wait(left_s)
            return False

    def _wake(self) -> None:
        """After something was queued. A writer that waits for company is left alone until a batch is full."""
        if self._is_idle:
            self._is_idle = False
            self._queued_at_s = self._clock()
            self._lock.notify_all()
        elif self._queue.num_bytes >= self.settings.batch_bytes:
            self._lock.notify_all()

    def _refuse_if_closed(self) -> None:
        """What is queued now nobody would write."""
        if self._is_closed:
            raise Unavailable(_GONE)

    def _refuse_if_full(self, num_bytes: int) -> None:
        self._refuse_if_closed()
        self._health.refuse_if_resting()
        queued, limit = self._queue.num_bytes, self.settings.max_queued_bytes
        # One block may always wait, however large.
        if queued and queued + num_bytes > limit:
            self.counters.refused_puts += 1
            raise Exhausted(
                f"{format_size(queued)} wait for the SSD, the limit is {format_size(limit)}",
                retry_after_ms=_RETRY_AFTER_MS,
            )

    def _acquire(self, block_hash: BlockHash) -> tuple[BlockRecord, Location, Bucket]:
        """Its bucket's file stays open until it is released."""
        index = self._blocks.index
        with self._lock:
            self._read_health.refuse_if_resting()
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
            self._read_health.on_read_error(why)
        return Unavailable(why)

    def _end_read(self, done: "Future[None]", error: Exception | None) -> None:
        with self._lock:
            if done not in self._reads:
                return
            self._reads.discard(done)
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


def _is_stored(held: BlockRecord, block: BlockRecord) -> bool:
    """Whether what is held makes the put needless. Raises Conflict."""
    if held.version == block.version and held.seal_checksum == block.seal_checksum:
        return True
    if held.version >= block.version:
        raise Conflict(
            f"block {short(block.meta.hash)} is on the SSD with other bytes or a newer version"
        )
    return False


def _join(pending: Append, block: BlockRecord) -> "Future[bool]":
    """The same bytes are on their way already."""
    assert isinstance(pending.record, BlockRecord)
    assert pending.done is not None
    if _is_stored(pending.record, block):
        return pending.done
    raise Exhausted(
        f"an older version of block {short(block.meta.hash)} is being written",
        retry_after_ms=_RETRY_AFTER_MS,
    )
