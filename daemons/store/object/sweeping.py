"""Makes deletes stay: manifests name what lives, and what no manifest names is removed. The writer's thread only."""

from daemons.core.errors import Unavailable
from daemons.core.ids import BlockHash
from daemons.store.lower.waiting import fail, finish
from daemons.store.object.catalog import Part
from daemons.store.object.manifest import Entry, encode_manifest, manifest_key
from daemons.store.object.shared import Shared


class Sweeper:
    """What fails is tried again by the next call."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._has_removed = False
        """Parts that are to be swept before anything newer is settled."""

    def settle(self) -> bool:
        """All deletes that were asked for before. Raises Unavailable."""
        shared = self._shared
        with shared.lock:
            waiting, shared.queue.deletes = shared.queue.deletes, []
            # The oldest first: else a stop in between brings an earlier version of a block back.
            stale = [shared.catalog.parts[part_id] for part_id in sorted(shared.catalog.stale)]
        try:
            for part in stale:
                self._settle_part(part)
            has_swept = self.sweep()
        except Unavailable as error:
            for done in waiting:
                fail(done, error)
            raise
        for done in waiting:
            finish(done, True)
        return bool(stale) or has_swept

    def sweep(self) -> bool:
        """Raises Unavailable."""
        shared = self._shared
        with shared.lock:
            keys = list(shared.garbage)
        if not keys:
            return False
        shared.bucket.delete(keys)
        with shared.lock:
            for key in keys:
                del shared.garbage[key]
        self._has_removed = False
        return True

    def remove(self, part: Part) -> list[BlockHash]:
        """With the lock held; the store is told by the next sweep. What still lived in it."""
        shared = self._shared
        gone = shared.catalog.remove_part(part)
        shared.discard(part)
        shared.counters.parts_removed += 1
        return gone

    def _settle_part(self, part: Part) -> None:
        shared = self._shared
        with shared.lock:
            entries = shared.catalog.entries(part)
            if not entries:
                self.remove(part)
                self._has_removed = True
                return
            shared.catalog.stale.discard(part.part_id)
        try:
            if self._has_removed:
                self.sweep()
            self._write_manifest(part, entries)
        except Unavailable:
            with shared.lock:
                shared.catalog.stale.add(part.part_id)
            raise

    def _write_manifest(self, part: Part, entries: list[Entry]) -> None:
        shared = self._shared
        part.last_revision += 1
        key = manifest_key(part.name, part.last_revision)
        try:
            shared.bucket.put(key, memoryview(encode_manifest(part.name, entries)))
        except Unavailable:
            with shared.lock:
                shared.garbage[key] = 0  # which may be there all the same
            raise
        with shared.lock:
            shared.garbage[manifest_key(part.name, part.revision)] = 0
            part.revision = part.last_revision
