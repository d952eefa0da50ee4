"""One node's object tier: blocks in parts of many, in a store that outlives the node and all its disks.

A put is done when the part with it and the part's manifest are in the store; a delete is visible at once, and done when
no manifest names it. One writer (`run_once`, by a thread of its own after `start`) lists what is there, writes and
reclaims; reads run beside it. A store that is slow or down costs bounded waits, then rests: a miss, never a hang.
"""

import logging
import secrets
import threading
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future

from daemons.core.clock import Clock, monotonic
from daemons.core.errors import Exhausted, McError, NotFound, Unavailable
from daemons.core.ids import BlockHash, short
from daemons.core.units import format_size
from daemons.store.copy_workers import CopyWorkers
from daemons.store.object.bucket import ObjectBucket
from daemons.store.object.catalog import Found
from daemons.store.object.health import StoreHealth
from daemons.store.object.manifest import data_key
from daemons.store.object.packing import verify_stored
from daemons.store.object.queue import RETRY_AFTER_MS, Pending, is_stored, join
from daemons.store.object.settings import ObjectCounters, ObjectSettings
from daemons.store.object.shared import GONE, OnDropped, OnFound, Shared, begun, fail
from daemons.store.object.writer import PartWriter
from daemons.store.seal import BadSeal
from daemons.store.ssd import BlockRecord
from daemons.store.ssd.aligned import copy_bytes
from daemons.store.ssd.buckets import RandomBits

log = logging.getLogger(__name__)

_MAX_EARLY_DELETES = 1_000_000
_TRIES = 2
"""Of a read: compaction may have moved the block meanwhile."""


def _ignore(*_: object) -> None:
    pass


class ObjectTier:
    """Empty until the writer has listed the store, which may be down when the node starts. `on_found` then hears of
    what is there, `on_dropped` of blocks that went without anybody asking; both on the tier's threads.
    """

    def __init__(
        self,
        bucket: ObjectBucket,
        settings: ObjectSettings,
        *,
        on_dropped: OnDropped = _ignore,
        on_found: OnFound = _ignore,
        clock: Clock = monotonic,
        random_bits: RandomBits = secrets.randbits,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._on_dropped = on_dropped
        rest_s = settings.rest_s, settings.max_rest_s
        self._shared = Shared(bucket, settings, clock, StoreHealth("writes", rest_s, clock))
        self._read_health = StoreHealth("reads", rest_s, clock)
        self._writer = PartWriter(self._shared, on_dropped, on_found, random_bits)
        self._lock = self._shared.lock
        self._catalog = self._shared.catalog
        self._queue = self._shared.queue
        self._reads: set[Future[None]] = set()
        self._workers = CopyWorkers(settings.read_workers, settings.max_queued_reads)
        self._thread: threading.Thread | None = None

    # Writing.

    def put(self, block: BlockRecord, source: memoryview) -> "Future[bool]":
        """True when it is in the store, False when it was deleted before. `source` (payload, trailer) stays until then.

        Raises Exhausted when too much waits, Unavailable while the store rests or is not listed yet, Conflict for other
        bytes of the same version. The future raises likewise.
        """
        done = begun()
        with self._lock:
            self._refuse_if_away()
            found = self._catalog.get(block.meta.hash)
            if found is not None and is_stored(found.block, block):
                done.set_result(True)
                return done
            pending = self._queue.pending(block.meta.hash)
            if pending is not None:
                return join(pending, block)
            self._refuse_if_full(block.stored_bytes)
            self._queue.add(Pending(block, source, done, self._clock()))
            self._lock.notify_all()
        return done

    def delete(self, hashes: Sequence[BlockHash]) -> "Future[bool]":
        """Gone for readers when this returns, for good when the future is done. It raises where the store failed; it is
        tried again until `close`. Raises Unavailable after that.
        """
        shared, done = self._shared, begun()
        with self._lock:
            if shared.is_closed:
                raise Unavailable(GONE)
            was_waiting = self._queue.cancel(hashes)
            dropped = self._catalog.drop(hashes)
            shared.counters.deleted_blocks += len(dropped)
            if not shared.is_open and len(shared.early_deletes) < _MAX_EARLY_DELETES:
                shared.early_deletes.update(hashes)
            may_return = was_waiting or dropped or shared.is_unsettled
            if not may_return:
                done.set_result(True)
            elif shared.health.is_resting:
                done.set_exception(Unavailable(shared.health.why))
            else:
                self._queue.deletes.append(done)
                self._lock.notify_all()
        return done

    def adopt(self, nodes: Iterable[str]) -> None:
        """Read for these nodes, which are away, and for no others. Their objects stay as they are."""
        shared = self._shared
        with self._lock:
            wanted = set(nodes)
            shared.to_adopt = wanted - shared.adopted
            left = shared.adopted - wanted
            parts = [part for part in self._catalog.parts.values() if part.owner in left]
            gone = [each for part in parts for each in self._catalog.remove_part(part)]
            shared.adopted -= left
            self._lock.notify_all()
        if gone:
            self._on_dropped(gone, "evicted")

    # Reading.

    def get(self, block_hash: BlockHash) -> BlockRecord | None:
        """Only looks: no sign of use."""
        with self._lock:
            found = self._catalog.get(block_hash)
        return found.block if found is not None else None

    def hashes(self) -> list[BlockHash]:
        with self._lock:
            return self._catalog.hashes()

    def leaving(self) -> list[BlockHash]:
        """Nothing lies below."""
        return []

    def read(self, block_hash: BlockHash) -> memoryview:
        """Payload and trailer, verified; on the caller's thread, for as long as a call to the store may take. Raises
        NotFound, BadSeal (and drops the block), Unavailable.
        """
        for _ in range(_TRIES):
            found = self._find(block_hash)
            try:
                stored = self._fetch(found)
            except (BadSeal, NotFound) as error:
                if self._is_moved(found):
                    continue
                self._on_bad_block(found, error)
                raise
            with self._lock:
                self._read_health.on_success()
                self._shared.counters.read_blocks += 1
                self._shared.counters.read_bytes += len(stored)
            return stored
        raise NotFound(f"block {short(block_hash)} moved twice while it was read")

    def submit_read(
        self, block_hash: BlockHash, target: memoryview, *, reader: Hashable = None
    ) -> "Future[None]":
        """Fill `target` by a worker; readers take turns. Raises Exhausted when too many wait, Unavailable while the
        store rests.
        """
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()

        def job() -> None:
            try:
                self._read_into(block_hash, target)
            except Exception as error:  # noqa: BLE001  # whoever waits gets it, a bug too
                self._end_read(done, error)
            else:
                self._end_read(done, None)

        with self._lock:
            self._read_health.refuse_if_resting()
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
    def is_open(self) -> bool:
        """What is in the store is known."""
        return self._shared.is_open

    @property
    def counters(self) -> ObjectCounters:
        return self._shared.counters

    def counts(self) -> dict[str, int]:
        return self.counters.as_dict()

    @property
    def num_blocks(self) -> int:
        return len(self._catalog.index)

    @property
    def used_bytes(self) -> int:
        """Of parts, so with garbage."""
        with self._lock:
            return self._catalog.num_bytes + sum(self._shared.garbage.values())

    @property
    def capacity_bytes(self) -> int:
        return self.settings.capacity_bytes

    @property
    def why_resting(self) -> str | None:
        """Why puts or reads are refused now; None when they are not."""
        both = (self._shared.health, self._read_health)
        return next((health.why for health in both if health.is_resting), None)

    def start(self) -> None:
        self._thread = threading.Thread(
            target=self.run_forever, name="mc-object-writer", daemon=True
        )
        self._thread.start()

    def run_forever(self) -> None:
        """Until `close`. A bug ends the writing: whoever waits is told, and so is whoever comes later."""
        try:
            while self._wait():
                self.run_once()
        except Exception:
            log.exception("object writer ended")
            with self._lock:
                self._shared.is_closed = True
            self._fail_waiting()

    def run_once(self) -> bool:
        """Some work on the store. False when there was none, or no store to do it."""
        return self._writer.run_once()

    def close(self) -> None:
        """Writes what waits if the store takes it in time. Calls that hang are left behind, with no way to memory."""
        with self._lock:
            self._shared.is_closed = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join(self.settings.close_s)
        self._shared.gate.shut()
        self._workers.close(timeout_s=0.0)
        self._writer.close()
        self._fail_waiting()

    def check_invariants(self) -> None:
        """For tests, while the writer is at rest. O(n * parts)."""
        with self._lock:
            self._catalog.check_invariants()

    def _wait(self) -> bool:
        """Until there is something to do, and a store to do it. False at the end."""
        with self._lock:
            while True:
                due_s = self._due_s()
                if self._shared.is_closed and (due_s is None or self._shared.health.is_resting):
                    return False
                if due_s is None:
                    self._lock.wait()
                    continue
                left_s = max(due_s, self._shared.health.resume_s) - self._clock()
                if left_s <= 0:
                    return True
                self._lock.wait(left_s)

    def _due_s(self) -> float | None:
        """None while there is nothing to do."""
        shared, now_s = self._shared, self._clock()
        if not shared.is_open:
            return None if shared.is_closed else now_s
        if shared.is_unsettled or (shared.to_adopt and not shared.is_closed):
            return now_s
        oldest_s = self._queue.oldest_s
        if oldest_s is None:
            return None if self._writer.is_compact or shared.is_closed else now_s
        is_full = self._queue.waiting_bytes >= self.settings.part_bytes
        return now_s if is_full or shared.is_closed else oldest_s + self.settings.commit_delay_s

    def _refuse_if_away(self) -> None:
        if self._shared.is_closed:
            raise Unavailable(GONE)
        self._shared.health.refuse_if_resting()
        if not self._shared.is_open:
            raise Unavailable("the object store is still being listed", retry_after_ms=1000)

    def _refuse_if_full(self, num_bytes: int) -> None:
        queued, limit = self._queue.num_bytes, self.settings.max_queued_bytes
        # One block may always wait, however large.
        if queued and queued + num_bytes > limit:
            self.counters.refused_puts += 1
            raise Exhausted(
                f"{format_size(queued)} wait for the object store, the limit is {format_size(limit)}",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def _find(self, block_hash: BlockHash) -> Found:
        with self._lock:
            self._read_health.refuse_if_resting()
            found = self._catalog.get(block_hash)
            if found is None:
                raise NotFound(f"block {short(block_hash)} is not in the object store")
            found.part.used_s = self._clock()
        return found

    def _fetch(self, found: Found) -> memoryview:
        try:
            bucket = self._shared.bucket_of(found.part)
            stored = bucket.get(data_key(found.part.name), found.offset, found.block.stored_bytes)
        except Unavailable as error:
            with self._lock:
                self.counters.read_errors += 1
                self._read_health.on_failure(error.message)
            raise
        verify_stored(found.block, stored)
        return stored

    def _read_into(self, block_hash: BlockHash, target: memoryview) -> None:
        stored = self.read(block_hash)
        with self._shared.gate.inside() as is_open:
            if not is_open:
                raise Unavailable(GONE)
            copy_bytes(target[: len(stored)], stored)

    def _is_moved(self, found: Found) -> bool:
        with self._lock:
            now = self._catalog.get(found.block.meta.hash)
        return now is not None and (now.part is not found.part or now.offset != found.offset)

    def _on_bad_block(self, found: Found, error: McError) -> None:
        block_hash = found.block.meta.hash
        with self._lock:
            if self._catalog.get(block_hash) is None:
                return  # deleted or evicted meanwhile, which whoever did it tells
            self._catalog.drop([block_hash])
            self.counters.bad_blocks += 1
            self._lock.notify_all()
        log.error("object block dropped block=%s why=%s", short(block_hash), error.message)
        self._on_dropped([block_hash], "bad")

    def _end_read(self, done: "Future[None]", error: Exception | None) -> None:
        with self._lock:
            if done not in self._reads:
                return
            self._reads.discard(done)
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def _fail_waiting(self) -> None:
        gone = Unavailable(GONE)
        with self._lock:
            puts = self._queue.all_pending()
            deletes, self._queue.deletes = self._queue.deletes, []
            reads = list(self._reads)
        for done in (*(put.done for put in puts), *deletes):
            fail(done, gone)
        for read in reads:
            self._end_read(read, gone)
