"""Writes what lives in half-empty and small parts into one again. The writer's thread only."""

import logging
from collections.abc import Callable

from daemons.core.errors import NotFound
from daemons.core.ids import BlockHash, short
from daemons.store.lower.state import OnDropped
from daemons.store.object.catalog import Part
from daemons.store.object.choosing import choose_compaction
from daemons.store.object.manifest import Entry, data_key
from daemons.store.object.packing import pack, verify_stored
from daemons.store.object.shared import Shared
from daemons.store.object.sweeping import Sweeper
from daemons.store.segment.seal import BadSeal

log = logging.getLogger(__name__)

Upload = Callable[[memoryview, list[Entry]], Part]


class Compactor:
    """`upload` puts a part into the store that nobody knows yet."""

    def __init__(
        self, shared: Shared, sweeper: Sweeper, upload: Upload, on_dropped: OnDropped
    ) -> None:
        self._shared = shared
        self._sweeper = sweeper
        self._upload = upload
        self._on_dropped = on_dropped

    def run_once(self) -> bool:
        """One new part. False when nothing is worth it. Raises Unavailable."""
        shared = self._shared
        with shared.lock:
            parts = shared.catalog.own
        group = choose_compaction(parts, shared.settings.part_bytes)
        if not group:
            return False
        survivors = [found for part in group for found in self._read(part)]
        if survivors:
            body, entries = pack(survivors)
            self._replace(group, self._upload(body, entries), entries)
        return True

    def _read(self, part: Part) -> list[tuple[Entry, memoryview]]:
        """Its live blocks, verified; a bad one is dropped."""
        shared = self._shared
        with shared.lock:
            entries = shared.catalog.entries(part)
        try:
            body = shared.bucket.get(data_key(part.name))
        except NotFound as error:
            log.warning("object part lost part=%s why=%s", part.name, error.message)
            body = memoryview(b"")
        found = [(e, body[e.offset : e.offset + e.block.stored_bytes]) for e in entries]
        good = [(entry, stored) for entry, stored in found if _is_intact(entry, stored)]
        kept = {entry.block.meta.hash for entry, _ in good}
        self._drop([e.block.meta.hash for e in entries if e.block.meta.hash not in kept])
        return good

    def _drop(self, bad: list[BlockHash]) -> None:
        shared = self._shared
        with shared.lock:
            shared.counters.bad_blocks += len(shared.catalog.drop(bad))
        if bad:
            self._on_dropped(bad, "bad")

    def _replace(self, group: list[Part], part: Part, entries: list[Entry]) -> None:
        """Blocks that were deleted meanwhile stay deleted."""
        shared = self._shared
        with shared.lock:
            live = [
                entry
                for entry in entries
                if (found := shared.catalog.get(entry.block.meta.hash)) and found.part in group
            ]
            part.used_s = max(old.used_s for old in group)
            shared.catalog.add_part(part, live, is_stale=len(live) < len(entries))
            for old in group:
                if old.part_id in shared.catalog.parts:  # room may have been made of it meanwhile
                    self._sweeper.remove(old)
            shared.counters.copied_blocks += len(live)
            shared.counters.copied_bytes += sum(entry.block.stored_bytes for entry in live)


def _is_intact(entry: Entry, stored: memoryview) -> bool:
    try:
        verify_stored(entry.block, stored)
    except BadSeal as error:
        log.warning("object block dropped block=%s why=%s", short(entry.block.meta.hash), error)
        return False
    return True
