"""The one writer of a tier: opens it, makes deletes stay, writes what waits in parts, and writes half-empty ones anew.

An object of blocks is there before its manifest, and a new manifest before an old one goes: a stop at any point leaves
each block once, twice, or, if nobody was told that it is there, not at all.
"""

import logging
from collections.abc import Mapping, Sequence

from daemons.core.errors import ConfigError, McError, Unavailable
from daemons.core.ids import BlockHash
from daemons.store.lower.state import OnDropped
from daemons.store.lower.waiting import fail, finish
from daemons.store.object.catalog import Part
from daemons.store.object.choosing import choose_victim
from daemons.store.object.compacting import Compactor
from daemons.store.object.life import Life
from daemons.store.object.manifest import Entry, part_name
from daemons.store.object.opening import Opened, open_parts
from daemons.store.object.packing import pack_sources
from daemons.store.object.queue import Pending
from daemons.store.object.shared import GONE, OnFound, Shared
from daemons.store.object.sweeping import Sweeper
from daemons.store.object.uploading import Upload, Uploader
from daemons.store.ssd.buckets import RandomBits

log = logging.getLogger(__name__)


class PartWriter:
    """One thread calls it."""

    def __init__(
        self, shared: Shared, on_dropped: OnDropped, on_found: OnFound, random_bits: RandomBits
    ) -> None:
        self._shared = shared
        self._on_dropped = on_dropped
        self._on_found = on_found
        self._random_bits = random_bits
        self._sweeper = Sweeper(shared)
        self._uploader = Uploader(shared)
        self._compactor = Compactor(shared, self._sweeper, self._upload, on_dropped)
        self._life = Life(shared.bucket, shared.clock, random_bits)
        self._number = 0
        self._part_id = 0
        self.is_compact = False
        """Nothing has changed since compaction found nothing to do."""

    def run_once(self) -> bool:
        """Some work. False when there was none, or no store to do it."""
        shared = self._shared
        if shared.health.is_resting:
            return False
        try:
            if not shared.is_open:
                self._open()
                return True
            self._life.check()
            did = self._settle()
            did = self._write_next() or self._adopt() or did
            if did:
                self.is_compact = False
            elif not self.is_compact and not shared.is_closed:
                did = self._compactor.run_once()
                self.is_compact = not did
        except (Unavailable, ConfigError) as error:
            self._on_failure(error)
            return False
        with shared.lock:
            shared.health.on_success()
        return did

    def _open(self) -> None:
        shared = self._shared
        ended = self._life.begin()
        opened = open_parts(shared.bucket, shared.clock(), lambda: shared.is_closed)
        opened.garbage.extend(ended)
        if shared.is_closed:
            raise Unavailable(GONE)
        with shared.lock:
            self._take_live(opened)
            self._part_id = max(shared.catalog.parts, default=0)
            self._number = opened.last_number
            shared.catalog.drop(shared.early_deletes)
            shared.early_deletes.clear()
            shared.garbage.update(dict.fromkeys(opened.garbage, 0))
            shared.counters.recovered_blocks = len(shared.catalog.index)
            shared.counters.damaged_manifests = opened.num_damaged
            shared.is_open = True
            shared.health.on_success()
            hashes = shared.catalog.hashes()
        log.info(
            "object tier opened blocks=%d parts=%d damaged=%d",
            len(hashes),
            len(opened.parts),
            opened.num_damaged,
        )
        self._on_found(hashes)

    def _take_live(self, opened: Opened) -> None:
        """With the lock held: deletes that the store has not heard of come first, and what it has is told then."""
        shared = self._shared
        dead: list[BlockHash] = []
        for part, entries in opened.parts:
            live = [entry for entry in entries if not shared.is_dead(entry.block)]
            if len(live) < len(entries):
                dead.extend(e.block.meta.hash for e in entries if shared.is_dead(e.block))
            shared.catalog.add_part(part, live, is_stale=len(live) < len(entries))
        if shared.journal is not None:
            shared.journal.sort(dead)

    def _settle(self) -> bool:
        """Raises Unavailable."""
        shared = self._shared
        with shared.lock:
            gone = set(shared.unsettled)
            waiting = shared.journal.waiting() if shared.journal is not None else []
        did = self._sweeper.settle()
        with shared.lock:
            shared.unsettled -= gone
            if shared.journal is not None:
                shared.journal.settle(waiting)
        return did

    def _adopt(self) -> bool:
        """What a node that is away has there, but for what is here too."""
        shared = self._shared
        with shared.lock:
            owner = next(iter(shared.to_adopt), None)
        if owner is None:
            return False
        try:
            opened = open_parts(shared.bucket.of(owner), shared.clock(), lambda: shared.is_closed)
        except ConfigError as error:  # written by a newer version: its own life will read it
            log.warning("object tier not adopted owner=%s why=%s", owner, error.message)
            opened = Opened()
        found: list[BlockHash] = []
        with shared.lock:
            if owner not in shared.to_adopt:  # it came back meanwhile
                return True
            shared.to_adopt.discard(owner)
            shared.adopted.add(owner)
            for part, entries in opened.parts:
                self._part_id += 1
                part.part_id, part.owner = self._part_id, owner
                new = [
                    each
                    for each in entries
                    if not shared.catalog.has_own(each.block.meta.hash)
                    and not shared.is_dead(each.block)
                ]
                shared.catalog.add_part(part, new)
                found.extend(entry.block.meta.hash for entry in new)
        log.info("object tier reads for owner=%s blocks=%d", owner, len(found))
        self._on_found(found)
        return True

    # Puts.

    def _write_next(self) -> bool:
        """As many parts side by side as are full, or one."""
        batches = self._take()
        uploads: list[Upload] = []
        try:
            for batch in batches:
                uploads.extend(self._pack(batch))
            if uploads:
                self._make_room(sum(len(upload.body) for upload in uploads))
                self._uploader.run(uploads)
        except Unavailable as error:
            self._end(batches, {put: error for batch in batches for put in batch})
            raise
        failed: dict[Pending, McError] = {}
        for upload in uploads:
            if upload.error is None:
                self._add(upload)
            else:
                failed.update(dict.fromkeys(upload.puts, upload.error))
        self._end(batches, failed)
        if failed:
            raise Unavailable(next(iter(failed.values())).message)
        return bool(batches)

    def _take(self) -> list[list[Pending]]:
        shared, settings = self._shared, self._shared.settings
        batches: list[list[Pending]] = []
        with shared.lock:
            while len(batches) < settings.uploads and self._is_due(is_first=not batches):
                batches.append(shared.queue.take(settings.part_bytes))
        return batches

    def _is_due(self, *, is_first: bool) -> bool:
        """With the lock held."""
        shared = self._shared
        oldest_s = shared.queue.oldest_s
        if oldest_s is None:
            return False
        is_late = shared.clock() >= oldest_s + shared.settings.commit_delay_s
        is_full = shared.queue.waiting_bytes >= shared.settings.part_bytes
        return is_full or (is_first and (is_late or shared.is_closed))

    def _pack(self, batch: list[Pending]) -> list[Upload]:
        """Nothing when all of it was deleted meanwhile."""
        puts = [put for put in batch if not put.is_cancelled]
        if not puts:
            return []
        with self._shared.gate.inside() as is_open:
            if not is_open:
                raise Unavailable(GONE)
            body, entries = pack_sources(puts)
        return [Upload(self._new_part(len(body)), body, entries, puts)]

    def _new_part(self, num_bytes: int) -> Part:
        self._number += 1
        self._part_id += 1
        name = part_name(self._number, self._random_bits(64))
        return Part(self._part_id, name, num_bytes, self._shared.clock())

    def _add(self, upload: Upload) -> None:
        shared, puts = self._shared, upload.puts
        with shared.lock:
            live = [e for put, e in zip(puts, upload.entries, strict=True) if not put.is_cancelled]
            is_stale = len(live) < len(upload.entries)
            shared.catalog.add_part(upload.part, live, is_stale=is_stale)
            shared.counters.put_blocks += len(live)
            shared.counters.put_bytes += sum(entry.block.stored_bytes for entry in live)

    def _end(self, batches: Sequence[Sequence[Pending]], failed: Mapping[Pending, McError]) -> None:
        """Whoever waits is told."""
        puts = [put for batch in batches for put in batch]
        with self._shared.lock:
            self._shared.queue.end(puts)
        for put in puts:
            error = failed.get(put)
            if error is None:
                finish(put.done, not put.is_cancelled)
            else:
                fail(put.done, error, is_cancelled=put.is_cancelled)

    def _upload(self, body: memoryview, entries: list[Entry]) -> Part:
        """One part. Raises Unavailable."""
        self._make_room(len(body))
        upload = Upload(self._new_part(len(body)), body, entries)
        self._uploader.run([upload])
        if upload.error is not None:
            raise Unavailable(upload.error.message)
        return upload.part

    def close(self) -> None:
        self._uploader.close()

    def _make_room(self, num_bytes: int) -> None:
        shared = self._shared
        while True:
            with shared.lock:
                used_bytes = shared.catalog.num_bytes + sum(shared.garbage.values())
                if used_bytes + num_bytes <= shared.settings.capacity_bytes:
                    return
                victim = choose_victim(shared.catalog.own)
                gone = [] if victim is None else self._sweeper.remove(victim)
                shared.unsettled.update(gone)
                shared.counters.evicted_blocks += len(gone)
            self._on_dropped(gone, "evicted")
            self._sweeper.sweep()
            if victim is None:
                return

    def _on_failure(self, error: McError) -> None:
        """Puts fail; deletes wait, for what was deleted must not come back."""
        shared = self._shared
        with shared.lock:
            shared.counters.write_errors += 1
            shared.health.on_failure(error.message)
            failed = shared.queue.drain()
        for put in failed:
            fail(put.done, error, is_cancelled=put.is_cancelled)
