"""The one writer of a tier: opens it, makes deletes stay, writes what waits in parts, and writes half-empty ones anew.

An object of blocks is there before its manifest, and a new manifest before an old one goes: a stop at any point leaves
each block once, twice, or, if nobody was told that it is there, not at all.
"""

import logging

from daemons.core.errors import ConfigError, McError, Unavailable
from daemons.core.ids import BlockHash
from daemons.store.object.catalog import Part
from daemons.store.object.choosing import choose_victim
from daemons.store.object.compacting import Compactor
from daemons.store.object.manifest import Entry, data_key, encode_manifest, part_name
from daemons.store.object.opening import open_parts
from daemons.store.object.packing import pack_sources
from daemons.store.object.queue import Pending
from daemons.store.object.shared import GONE, OnDropped, OnFound, Shared, end_failed, finish
from daemons.store.object.sweeping import Sweeper
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
        self._compactor = Compactor(shared, self._sweeper, self._upload, on_dropped)
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
            did = self._sweeper.settle()
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
        opened = open_parts(shared.bucket, shared.clock(), lambda: shared.is_closed)
        if shared.is_closed:
            raise Unavailable(GONE)
        with shared.lock:
            for part, entries in opened.parts:
                shared.catalog.add_part(part, entries)
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

    def _adopt(self) -> bool:
        """What a node that is away has there, but for what is here too."""
        shared = self._shared
        with shared.lock:
            owner = next(iter(shared.to_adopt), None)
        if owner is None:
            return False
        opened = open_parts(shared.bucket.of(owner), shared.clock(), lambda: shared.is_closed)
        found: list[BlockHash] = []
        with shared.lock:
            if owner not in shared.to_adopt:  # it came back meanwhile
                return True
            shared.to_adopt.discard(owner)
            shared.adopted.add(owner)
            for part, entries in opened.parts:
                self._part_id += 1
                part.part_id, part.owner = self._part_id, owner
                new = [each for each in entries if not shared.catalog.has_own(each.block.meta.hash)]
                shared.catalog.add_part(part, new)
                found.extend(entry.block.meta.hash for entry in new)
        log.info("object tier reads for owner=%s blocks=%d", owner, len(found))
        self._on_found(found)
        return True

    # Puts.

    def _write_next(self) -> bool:
        shared = self._shared
        with shared.lock:
            if not self._is_due():
                return False
            batch = shared.queue.take(shared.settings.part_bytes)
        puts = [put for put in batch if not put.is_cancelled]
        try:
            if puts:
                self._write_puts(puts)
        except Unavailable as error:
            with shared.lock:
                shared.queue.end(batch)
            for put in batch:
                end_failed(put, error)
            raise
        with shared.lock:
            shared.queue.end(batch)
        for put in batch:
            finish(put.done, not put.is_cancelled)
        return True

    def _is_due(self) -> bool:
        """With the lock held."""
        shared = self._shared
        oldest_s = shared.queue.oldest_s
        if oldest_s is None:
            return False
        is_late = shared.clock() >= oldest_s + shared.settings.commit_delay_s
        is_full = shared.queue.waiting_bytes >= shared.settings.part_bytes
        return is_late or is_full or shared.is_closed

    def _write_puts(self, puts: list[Pending]) -> None:
        shared = self._shared
        with shared.gate.inside() as is_open:
            if not is_open:
                raise Unavailable(GONE)
            body, entries = pack_sources(puts)
        part = self._upload(body, entries)
        with shared.lock:
            live = [e for put, e in zip(puts, entries, strict=True) if not put.is_cancelled]
            shared.catalog.add_part(part, live, is_stale=len(live) < len(entries))
            shared.counters.put_blocks += len(live)
            shared.counters.put_bytes += sum(entry.block.stored_bytes for entry in live)

    def _upload(self, body: memoryview, entries: list[Entry]) -> Part:
        """A part that nobody knows yet. What arrives of one that fails is garbage."""
        shared = self._shared
        self._make_room(len(body))
        self._number += 1
        self._part_id += 1
        name = part_name(self._number, self._random_bits(64))
        part = Part(self._part_id, name, len(body), shared.clock())
        try:
            shared.bucket.put(data_key(name), body)
            shared.bucket.put(part.keys[0], memoryview(encode_manifest(name, entries)))
        except Unavailable:
            with shared.lock:
                shared.discard(part)
            raise
        shared.counters.parts_written += 1
        return part

    def _make_room(self, num_bytes: int) -> None:
        shared = self._shared
        while True:
            with shared.lock:
                used_bytes = shared.catalog.num_bytes + sum(shared.garbage.values())
                if used_bytes + num_bytes <= shared.settings.capacity_bytes:
                    return
                victim = choose_victim(shared.catalog.own)
                gone = [] if victim is None else self._sweeper.remove(victim)
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
            end_failed(put, error)
