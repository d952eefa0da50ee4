"""One node's object tier: blocks in parts of many, in a store that outlives the node and all its disks.

A put is done when the part with it and the part's manifest are in the store; a delete is visible at once, and done when
no manifest names it. The writer lists what is there, writes and reclaims; reads run beside it. A store that is slow or
down costs bounded waits, then rests: a miss, never a hang.
"""

import logging
import secrets
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from daemons.core.clock import Clock, monotonic
from daemons.core.errors import McError, NotFound, Unavailable
from daemons.core.ids import BlockHash, short
from daemons.store.index.format import DeadRecord
from daemons.store.lower.block_record import BlockRecord
from daemons.store.lower.health import Rest, TierHealth
from daemons.store.lower.state import OnDropped, ignore
from daemons.store.lower.tier import LowerTier
from daemons.store.lower.waiting import Waiting, begun, fail
from daemons.store.object.bucket import ObjectBucket
from daemons.store.object.catalog import Found
from daemons.store.object.choosing import choose_victim
from daemons.store.object.delete_journal import DeleteJournal
from daemons.store.object.manifest import data_key
from daemons.store.object.packing import verify_stored
from daemons.store.object.queue import Pending
from daemons.store.object.settings import ObjectCounters, ObjectSettings
from daemons.store.object.shared import OnFound, Shared
from daemons.store.object.writer import PartWriter
from daemons.store.segment.seal import BadSeal
from daemons.store.ssd.aligned import copy_bytes
from daemons.store.ssd.buckets import RandomBits

log = logging.getLogger(__name__)

_MAX_EARLY_DELETES = 1_000_000
_TRIES = 2
"""Of a read: compaction may have moved the block meanwhile."""


class ObjectTier(LowerTier):
    """Empty until the writer has listed the store, which may be down when the node starts. `on_found` then hears of
    what is there, `on_dropped` of blocks that went without anybody asking; both on the tier's threads.
    """

    where = "the object store"
    _close_reads_s = 0.0

    def __init__(
        self,
        bucket: ObjectBucket,
        settings: ObjectSettings,
        *,
        on_dropped: OnDropped = ignore,
        on_found: OnFound = ignore,
        clock: Clock = monotonic,
        random_bits: RandomBits = secrets.randbits,
    ) -> None:
        self.settings = settings
        self._on_dropped = on_dropped
        rest = Rest(settings.rest_s, settings.max_rest_s)
        self._shared = Shared(
            clock=clock,
            health=TierHealth("object writes", rest, clock),
            read_health=TierHealth("object reads", rest, clock),
            bucket=bucket,
            settings=settings,
        )
        self._writer = PartWriter(self._shared, on_dropped, on_found, random_bits)
        self._catalog = self._shared.catalog
        self._queue = self._shared.queue
        super().__init__(settings, self._shared, self._shared.counters)

    def keep_deletes_in(self, journal: DeleteJournal) -> None:
        """Before `start`; the tier closes it. Without one a delete is sure to stay only once the store has it."""
        self._shared.journal = journal

    # Writing.

    def delete(self, hashes: Sequence[BlockHash]) -> "Future[bool]":
        """Done when no manifest names them."""
        shared, done = self._shared, begun()
        with self._lock:
            if shared.is_closed:
                raise self._gone
            was_waiting = self._queue.cancel(hashes)
            dropped = self._catalog.drop(hashes)
            shared.counters.deleted_blocks += len(dropped)
            shared.unsettled.update(dropped)
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

    def forget(self, names: Sequence[DeadRecord]) -> "Future[bool]":
        """Done when the journal has them on disk: the store itself hears of it when it can."""
        shared, journal = self._shared, self._shared.journal
        if journal is None:
            return super().forget(names)
        with self._lock:
            may_return = [name for name in names if self._may_return(name)]
            if may_return and shared.is_closed:
                raise self._gone
            elsewhere = [name for name in may_return if self._is_elsewhere(name)]
            here = [name for name in may_return if not self._is_elsewhere(name)]
            held = [name.key for name in names if _is_of(name, self._held(name.key))]
            self._queue.cancel([n.key for n in names if _is_of(n, self._queued(n.key))])
            dropped = self._catalog.drop(held)
            shared.counters.deleted_blocks += len(dropped)
            self._lock.notify_all()
            return journal.add(here, elsewhere)

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

    def hashes(self) -> list[BlockHash]:
        with self._lock:
            return self._catalog.hashes()

    def leaving(self) -> list[BlockHash]:
        """Nothing lies below."""
        return []

    def mark(self) -> int:
        with self._lock:
            return 1 + max(self._catalog.parts, default=0)

    def is_full_since(self, mark: int) -> bool:
        shared = self._shared
        with self._lock:
            taken = self._catalog.num_bytes + sum(shared.garbage.values()) + self._queued_bytes
            if taken + shared.settings.part_bytes <= shared.settings.capacity_bytes:
                return False
            victim = choose_victim(self._catalog.own)
            return victim is None or victim.part_id >= mark

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
                self._shared.read_health.on_success()
                self._shared.counters.read_blocks += 1
                self._shared.counters.read_bytes += len(stored)
            return stored
        raise NotFound(f"block {short(block_hash)} moved twice while it was read")

    # Life.

    @property
    def is_open(self) -> bool:
        """What is in the store is known."""
        return self._shared.is_open

    @property
    def counters(self) -> ObjectCounters:
        return self._shared.counters

    @property
    def num_blocks(self) -> int:
        return len(self._catalog.index)

    @property
    def used_bytes(self) -> int:
        """Of parts, so with garbage."""
        with self._lock:
            return self._catalog.num_bytes + sum(self._shared.garbage.values())

    def run_once(self) -> bool:
        return self._writer.run_once()

    def dead_names(self) -> list[DeadRecord]:
        """Deletes that an earlier life had on disk."""
        return self._shared.journal.names() if self._shared.journal is not None else []

    def check_invariants(self) -> None:
        """O(n * parts)."""
        with self._lock:
            self._catalog.check_invariants()

    # Steps.

    def _held(self, block_hash: BlockHash) -> BlockRecord | None:
        found = self._catalog.get(block_hash)
        return found.block if found is not None else None

    def _waiting(self, block_hash: BlockHash) -> Waiting | None:
        pending = self._queue.pending(block_hash)
        return None if pending is None else Waiting(pending.block, pending.done)

    @property
    def _queued_bytes(self) -> int:
        return self._queue.num_bytes

    def _queue_put(self, put: Waiting, source: memoryview) -> None:
        self._queue.add(Pending(put.block, source, put.done, self._shared.clock()))
        self._lock.notify_all()

    def _refuse_if_away(self) -> None:
        super()._refuse_if_away()
        if not self._shared.is_open:
            raise Unavailable("the object store is still being listed", retry_after_ms=1000)

    def _due_s(self) -> float | None:
        """None while there is nothing to do."""
        shared, now_s = self._shared, self._shared.clock()
        if not shared.is_open:
            return None if shared.is_closed else now_s
        if shared.is_unsettled or (shared.to_adopt and not shared.is_closed):
            return now_s
        oldest_s = self._queue.oldest_s
        if oldest_s is None:
            return None if self._writer.is_compact or shared.is_closed else now_s
        is_full = self._queue.waiting_bytes >= self.settings.part_bytes
        return now_s if is_full or shared.is_closed else oldest_s + self.settings.commit_delay_s

    def _read_into(self, block_hash: BlockHash, target: memoryview) -> object:
        stored = self.read(block_hash)
        with self._shared.gate.inside() as is_open:
            if not is_open:
                raise self._gone
            copy_bytes(target[: len(stored)], stored)
        return None

    def _end_writing(self, writer: threading.Thread | None) -> None:
        """Calls that hang are left behind, with no way to memory."""
        if writer is not None:
            writer.join(self.settings.close_s)
        self._shared.gate.shut()

    def _fail_waiting(self, error: Unavailable) -> None:
        with self._lock:
            puts = self._queue.all_pending()
            deletes, self._queue.deletes = self._queue.deletes, []
        for done in (*(put.done for put in puts), *deletes):
            fail(done, error)

    def _release(self) -> None:
        self._writer.close()
        if self._shared.journal is not None:
            self._shared.journal.close()

    # Inside.

    def _queued(self, block_hash: BlockHash) -> BlockRecord | None:
        pending = self._queue.pending(block_hash)
        return None if pending is None else pending.block

    def _may_return(self, name: DeadRecord) -> bool:
        """Whether the store has it, or may have."""
        shared = self._shared
        if not shared.is_open or shared.to_adopt or name.key in shared.unsettled:
            return True
        return _is_of(name, self._held(name.key)) or _is_of(name, self._queued(name.key))

    def _is_elsewhere(self, name: DeadRecord) -> bool:
        """Not of what this node wrote."""
        shared = self._shared
        if not shared.is_open or name.key in shared.unsettled:
            return False
        return not self._catalog.has_own(name.key) and self._queued(name.key) is None

    def _find(self, block_hash: BlockHash) -> Found:
        with self._lock:
            self._shared.read_health.refuse_if_resting()
            found = self._catalog.get(block_hash)
            if found is None:
                raise NotFound(f"block {short(block_hash)} is not in the object store")
            found.part.used_s = self._shared.clock()
        return found

    def _fetch(self, found: Found) -> memoryview:
        try:
            bucket = self._shared.bucket_of(found.part)
            stored = bucket.get(data_key(found.part.name), found.offset, found.block.stored_bytes)
        except Unavailable as error:
            with self._lock:
                self.counters.read_errors += 1
                self._shared.read_health.on_failure(error.message)
            raise
        verify_stored(found.block, stored)
        return stored

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


def _is_of(name: DeadRecord, block: BlockRecord | None) -> bool:
    return block is not None and block.version <= name.version
