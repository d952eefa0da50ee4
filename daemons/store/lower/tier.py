"""A tier below DRAM, whatever it is made of: the one writer's thread, bounded queues, waits, and how it ends.

A put is done when it is there to stay; a delete is visible at once and done when it cannot come back. What differs (an
SSD's log files, an object store) is in the two kinds, each of which gives the steps at the end of this class.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from typing import ClassVar

from daemons.core.errors import Exhausted, Unavailable
from daemons.core.ids import BlockHash
from daemons.core.units import format_size
from daemons.store.index.format import DeadRecord
from daemons.store.lower.block_record import BlockRecord
from daemons.store.lower.reads import ReadPool
from daemons.store.lower.state import Bounds, TierCounters, TierState
from daemons.store.lower.waiting import RETRY_AFTER_MS, Waiting, begun, is_stored, join

log = logging.getLogger(__name__)


class LowerTier(ABC):
    """Blocks by hash, verified when they are read, found again after every start. Any thread; nothing here waits but
    `close`.
    """

    where: ClassVar[str]
    """As messages name it."""

    def __init__(self, bounds: Bounds, state: TierState, counters: TierCounters) -> None:
        self._bounds = bounds
        self._state = state
        self._counters = counters
        self._lock = state.lock
        self._gone = Unavailable(f"this node has closed {self.where}")
        self._reads = ReadPool(bounds.read_workers, bounds.max_queued_reads)
        self._thread: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        """What is there is known: that of a tier elsewhere may not be for a while."""
        return True

    # Writing.

    def put(self, block: BlockRecord, source: memoryview) -> "Future[bool]":
        """True when it is there to stay, False when it was deleted before. `source` (payload, trailer) stays until
        then.

        Raises Exhausted when too much waits, Unavailable while the tier rests or is not open yet, Conflict for other
        bytes of the same version, Rejected for a block that never fits. The future raises likewise.
        """
        self._refuse_unfit(block)
        done = begun()
        with self._lock:
            held = self._held(block.meta.hash)
            if held is not None and is_stored(held, block, self.where):
                done.set_result(True)
                return done
            waiting = self._waiting(block.meta.hash)
            if waiting is not None:
                return join(waiting, block, self.where)
            self._refuse_if_away()
            self._refuse_if_full(block.stored_bytes)
            self._queue_put(Waiting(block, done), source)
        return done

    @abstractmethod
    def delete(self, hashes: Sequence[BlockHash]) -> "Future[bool]":
        """Gone for readers when this returns, for good when the future is done. It raises where the tier failed; it is
        then tried again until `close`. Raises Unavailable after that.
        """

    def forget(self, names: Sequence[DeadRecord]) -> "Future[bool]":
        """These versions of objects and older ones, as `delete`; done when they do not come back, whatever memory is
        lost. As `delete` for one that was closed, where it has any of them.
        """
        with self._lock:
            dead = [name.key for name in names if self._has_up_to(name)]
        if dead:
            return self.delete(dead)
        done = begun()
        done.set_result(True)
        return done

    # Reading.

    def get(self, block_hash: BlockHash) -> BlockRecord | None:
        """Only looks: no sign of use."""
        with self._lock:
            return self._held(block_hash)

    @abstractmethod
    def hashes(self) -> list[BlockHash]: ...

    @abstractmethod
    def leaving(self) -> list[BlockHash]:
        """What it will give up next for space; empty while there is enough, and where nothing lies below it."""

    @abstractmethod
    def mark(self) -> int:
        """What is put from now on is of this mark or a higher one."""

    @abstractmethod
    def is_full_since(self, mark: int) -> bool:
        """Whether the next puts find no space but that of what was put since then; O(files)."""

    def submit_read(
        self, block_hash: BlockHash, target: memoryview, *, reader: Hashable = None
    ) -> "Future[None]":
        """Fill `target` with payload and trailer, verified; readers take turns. Raises Exhausted when too many wait,
        Unavailable; the future also NotFound, BadSeal (the block is then gone).
        """
        with self._lock:
            self._state.read_health.refuse_if_resting()
        return self._reads.submit(reader, lambda: self._read_into(block_hash, target))

    # Life.

    @property
    @abstractmethod
    def num_blocks(self) -> int: ...

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """With what is garbage and not reclaimed yet."""

    @property
    def capacity_bytes(self) -> int:
        return self._bounds.capacity_bytes

    @property
    def why_resting(self) -> str | None:
        """Why puts or reads are refused now; None when they are not."""
        both = (self._state.health, self._state.read_health)
        return next((health.why for health in both if health.is_resting), None)

    def counts(self) -> dict[str, int]:
        """What happened since the start, by kind."""
        return self._counters.as_dict()

    def start(self) -> None:
        name = f"mc-{type(self).__name__.lower()}"
        self._thread = threading.Thread(target=self.run_forever, name=name, daemon=True)
        self._thread.start()

    def run_forever(self) -> None:
        """Until `close`. A bug ends the writing: whoever waits is told, and so is whoever comes later."""
        try:
            while self._wait():
                self.run_once()
        except Exception:
            log.exception("writer ended of=%s", self.where)
            with self._lock:
                self._state.is_closed = True
            self._fail_waiting(self._gone)

    @abstractmethod
    def run_once(self) -> bool:
        """Some work of the writer. False when there was none, or nothing to do it on."""

    def close(self) -> None:
        """Writes what waits if it can in time; what does not get there raises Unavailable to its waiters.

        Afterwards no source is read and no target is written.
        """
        with self._lock:
            self._state.is_closed = True
            self._lock.notify_all()
        self._end_writing(self._thread)
        self._reads.close(self._gone, self._close_reads_s)
        self._fail_waiting(self._gone)
        self._release()

    @abstractmethod
    def check_invariants(self) -> None:
        """For tests, while the writer is at rest."""

    # Steps of one kind of tier. With the lock held unless it says otherwise.

    _close_reads_s: ClassVar[float | None] = None
    """Reads that hang longer at the end are left behind; None: none hangs."""

    @abstractmethod
    def _held(self, block_hash: BlockHash) -> BlockRecord | None: ...

    @abstractmethod
    def _waiting(self, block_hash: BlockHash) -> Waiting | None:
        """A put of it that was not deleted since."""

    @property
    @abstractmethod
    def _queued_bytes(self) -> int: ...

    @abstractmethod
    def _queue_put(self, put: Waiting, source: memoryview) -> None: ...

    @abstractmethod
    def _due_s(self) -> float | None:
        """When there is something to do for the writer; None: not before `_lock` is notified."""

    @abstractmethod
    def _read_into(self, block_hash: BlockHash, target: memoryview) -> object:
        """Without the lock, by a worker."""

    @abstractmethod
    def _end_writing(self, writer: threading.Thread | None) -> None:
        """Without the lock, after `is_closed` was set: until nothing reads sources any more."""

    @abstractmethod
    def _fail_waiting(self, error: Unavailable) -> None:
        """Without the lock."""

    @abstractmethod
    def _release(self) -> None:
        """Without the lock, at the very end: files and threads."""

    def _has_up_to(self, name: DeadRecord) -> bool:
        waiting, held = self._waiting(name.key), self._held(name.key)
        is_waiting = waiting is not None and waiting.block.version <= name.version
        return is_waiting or (held is not None and held.version <= name.version)

    def _refuse_unfit(self, block: BlockRecord) -> None:  # noqa: B027  # most blocks fit
        """Without the lock. Raises Rejected."""

    def _refuse_if_away(self) -> None:
        """Raises Unavailable."""
        if self._state.is_closed:
            raise self._gone
        self._state.health.refuse_if_resting()

    # The writer's wait.

    def _refuse_if_full(self, num_bytes: int) -> None:
        queued, limit = self._queued_bytes, self._bounds.max_queued_bytes
        # One block may always wait, however large.
        if queued and queued + num_bytes > limit:
            self._counters.refused_puts += 1
            raise Exhausted(
                f"{format_size(queued)} wait for {self.where}, the limit is {format_size(limit)}",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def _wait(self) -> bool:
        """Until there is something to do, and something to do it on. False at the end."""
        state = self._state
        with self._lock:
            while True:
                due_s = self._due_s()
                if state.is_closed and (due_s is None or state.health.is_resting):
                    return False
                if due_s is None:
                    self._lock.wait()
                    continue
                left_s = max(due_s, state.health.resume_s) - state.clock()
                if left_s <= 0:
                    return True
                self._lock.wait(left_s)
