"""The one writer of a tier: takes what waits, makes room for it, brings it to the disk with one sync, tells it."""

import errno
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from daemons.core.errors import Exhausted, McError, Unavailable
from daemons.core.units import format_size
from daemons.store.lower import BlockRecord
from daemons.store.lower.state import OnDropped, TierState
from daemons.store.lower.waiting import fail, finish
from daemons.store.ssd.block_map import BlockMap
from daemons.store.ssd.delete_log import DeleteLog
from daemons.store.ssd.index import Location
from daemons.store.ssd.log_writer import Append, LogWriter, placed
from daemons.store.ssd.reclaim import Reclaimer
from daemons.store.ssd.record import RecordKind, TombstoneRecord
from daemons.store.ssd.settings import SsdCounters, SsdSettings
from daemons.store.ssd.write_queue import WriteQueue

log = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_RECLAIM_PER_BATCH = 4
"""Times the size of a batch: a bucket is reclaimed before the open one is full, whatever is kept of it."""
_MAX_GIVEN_UP = 2
"""Buckets evicted for a full filesystem before puts are refused, for whoever fills it may go on to do so."""
_SHRUNK_S = 60.0
"""So long a tier that met a full filesystem makes do with what it had then, or gives up no more for it."""


@dataclass(slots=True, kw_only=True)
class Shared(TierState):
    """`lock` guards all but the settings."""

    settings: SsdSettings
    counters: SsdCounters
    blocks: BlockMap
    deletes: DeleteLog
    queue: WriteQueue = field(default_factory=WriteQueue)


class BatchWriter:
    """One thread calls it."""

    def __init__(self, shared: Shared, sequence: int, on_dropped: OnDropped) -> None:
        self._shared = shared
        self._clock = clock = shared.clock
        self._log = LogWriter(shared.blocks.buckets, shared.settings.bucket_bytes, sequence)
        self._reclaimer = Reclaimer(
            shared.blocks,
            self._log,
            shared.queue,
            shared.counters,
            shared.lock,
            shared.settings.kept_fraction,
            on_dropped,
        )
        self._limit_bytes = shared.settings.capacity_bytes
        self._shrunk_until_s = clock()
        self._gives_up_from_s = clock()

    def run_once(self) -> bool:
        """One batch, and some reclaiming. False when there was nothing to do, or no disk to do it."""
        if self._shared.health.is_resting:
            return False
        batch: list[Append] = []
        try:
            has_reclaimed = self._make_room()
            batch = self._take()
            if batch:
                self._write(batch)
        except OSError as error:
            self._on_error(batch, error)
            return False
        except Exception:
            with self._shared.lock:
                failed = self._shared.queue.fail(batch)
            fail_appends(failed, Unavailable("the SSD's writer met a bug; the log has it"))
            raise
        if any(isinstance(append.record, TombstoneRecord) for append in batch):
            self._drop_empty()
        return has_reclaimed or bool(batch)

    def close(self) -> None:
        try:
            self._log.close_head()
        except OSError as error:
            log.warning("ssd bucket not trimmed why=%s", error)

    def _take(self) -> list[Append]:
        with self._shared.lock:
            batch, cancelled = self._shared.queue.take(
                self._log.room, self._shared.settings.batch_bytes
            )
        for append in cancelled:
            _resolve(append, False)
        return batch

    def _write(self, batch: list[Append]) -> None:
        shared = self._shared
        locations = self._log.append(batch)
        held_off = self._held_off(batch, locations)
        if held_off:
            shared.deletes.append(
                held_off, shared.blocks.buckets.oldest_sequence(self._log.sequence)
            )
        outcomes = []
        with shared.lock:
            for append, location in zip(batch, locations, strict=True):
                is_stored = shared.queue.written(append)
                outcomes.append(is_stored)
                if is_stored and isinstance(append.record, BlockRecord):
                    shared.blocks.put(append.record, location)
                    shared.counters.put_blocks += 1
                    shared.counters.put_bytes += append.num_bytes
            shared.counters.commits += 1
        for append, is_stored in zip(batch, outcomes, strict=True):
            _resolve(append, is_stored)

    def _held_off(
        self, batch: Sequence[Append], locations: Sequence[Location]
    ) -> list[TombstoneRecord]:
        """What must not come back if the open bucket is lost: what was deleted, and versions that were replaced."""
        held_off = []
        for append, location in zip(batch, locations, strict=True):
            record = placed(append.record, location.sequence)
            if isinstance(record, TombstoneRecord):
                if not record.is_empty:
                    held_off.append(record)
                continue
            with self._shared.lock:
                is_replaced = self._shared.blocks.get(record.meta.hash) is not None
            if is_replaced:
                keys = (record.meta.hash,)
                held_off.append(TombstoneRecord(RecordKind.DELETES, location.sequence, keys))
        return held_off

    def _make_room(self) -> bool:
        """An open bucket that takes what comes next, and the space of another beside it. Raises OSError."""
        bucket_bytes = self._shared.settings.bucket_bytes
        with self._shared.lock:
            needed = self._shared.queue.next_room_bytes
            if self._clock() >= self._shrunk_until_s:
                self._limit_bytes = self._shared.settings.capacity_bytes
            is_tight = self._free_bytes() < bucket_bytes
        if needed <= self._log.room:
            step_bytes = _RECLAIM_PER_BATCH * self._shared.settings.batch_bytes
            return bool(needed) and is_tight and self._reclaimer.step(step_bytes)
        self._log.close_head()
        for attempt in range(1 + _MAX_GIVEN_UP):
            self._reclaim_until(bucket_bytes)
            try:
                self._log.open_head()
            except OSError as error:
                if error.errno not in _FULL or self._clock() < self._gives_up_from_s:
                    raise
                if attempt == _MAX_GIVEN_UP:
                    self._gives_up_from_s = self._clock() + _SHRUNK_S
                    raise
                self._shrink()
            else:
                break
        return True

    def _free_bytes(self) -> int:
        shared = self._shared
        return self._limit_bytes - shared.blocks.buckets.file_bytes - shared.deletes.allotted_bytes

    def _reclaim_until(self, num_bytes: int) -> None:
        """Free so much of the limit, by whole buckets."""
        while self._free_bytes() < num_bytes:
            if not self._reclaimer.step(self._shared.settings.batch_bytes):
                raise OSError(errno.ENOSPC, "no room for one bucket")

    def _shrink(self) -> None:
        """Give up one bucket, and be content with what is left and a new one. Raises OSError when there is none."""
        buckets, bucket_bytes = self._shared.blocks.buckets, self._shared.settings.bucket_bytes
        before = buckets.file_bytes
        while buckets.file_bytes == before:
            if not self._reclaimer.step(bucket_bytes):
                raise OSError(errno.ENOSPC, "no room for one bucket")
        self._limit_bytes = buckets.file_bytes + bucket_bytes + self._shared.deletes.allotted_bytes
        self._shrunk_until_s = self._clock() + _SHRUNK_S
        log.warning(
            "ssd filesystem full for_s=%g makes_do_with=%s",
            _SHRUNK_S,
            format_size(self._limit_bytes),
        )

    def _drop_empty(self) -> None:
        try:
            self._reclaimer.drop_empty()
        except OSError as error:
            self._on_error([], error)

    def _on_error(self, batch: list[Append], error: OSError) -> None:
        """Puts fail; tombstones wait, for what was deleted must not come back."""
        is_full = error.errno in _FULL
        why = f"the SSD's filesystem is full: {error}" if is_full else f"the SSD failed: {error}"
        with self._shared.lock:
            self._shared.counters.write_errors += 1
            self._shared.health.on_failure(why)
            self._shrunk_until_s = self._clock()
            failed = self._shared.queue.fail(batch)
        retry_after_ms = int(self._shared.settings.rest_s * 1000)
        family = Exhausted if is_full else Unavailable
        fail_appends(failed, family(why, retry_after_ms=retry_after_ms))


def fail_appends(appends: Sequence[Append], error: McError) -> None:
    """A put that was deleted has its answer all the same."""
    for append in appends:
        if append.done is not None:
            fail(append.done, error, is_cancelled=append.is_cancelled)


def _resolve(append: Append, is_stored: bool) -> None:
    if append.done is not None:
        finish(append.done, is_stored)
