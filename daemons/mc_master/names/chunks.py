"""Chunks of large objects: held while their put goes on, freed with their object or its failed put, or as orphans."""

import logging
from typing import Final

from daemons.config.segment_cut import SLOT_ALIGN
from daemons.core.ids import BlockHash, NodeId
from daemons.core.units import MIB
from daemons.mc_master.blocks.lookups import MAX_LEASE_S
from daemons.mc_master.names.telling import Telling
from daemons.mc_master.state import MasterState
from daemons.protocol.name_hash import chunk_key
from daemons.protocol.packed import SealedBlocks
from daemons.service.bounded_log import BOUNDED
from daemons.store.directory.names import NameTable
from daemons.store.directory.object_rows import MAX_SCANNED, OBJECT_MODEL, find_orphans

log = logging.getLogger(__name__)

MIN_CHUNK_BYTES: Final = MIB - SLOT_ALIGN
"""No value is cut smaller."""
_MAX_GAP: Final = 64
"""Chunks missing in a row behind which no other is looked for: each node reports for itself, and they take turns."""
_PUT_LEASE_S: Final = 2 * MAX_LEASE_S
"""Those of a put that never ends are freed as orphans long before. No reader's is as long, so it is known by that."""
_MAX_FREED_CHUNKS: Final = 1024
"""Along with their object; those beyond wait for the search for orphans."""
_MAX_VAIN_CHUNKS: Final = 16_384
"""Looked for after a put that failed, some of which were never sealed."""


class Chunks:
    """Loop thread only."""

    def __init__(self, state: MasterState, names: NameTable, telling: Telling) -> None:
        self._state = state
        self._names = names
        self._telling = telling
        self._next_row = 0
        """Where the search for orphans goes on."""

    def on_recorded(self, sealed: SealedBlocks) -> None:
        """Chunks stay while their put goes on, or a large value would push out its own beginning."""
        if not sealed.is_of_model(OBJECT_MODEL):
            return
        now_s = self._state.now_s()
        for block in sealed:
            meta = block.meta
            if meta.model != OBJECT_MODEL:
                continue
            if not meta.name and self._names.is_held(meta.parent, block.version, now_s=now_s):
                self._state.directory.lease_until(meta.hash, now_s + _PUT_LEASE_S)
            elif meta.name and meta.value_bytes > block.length:
                self.end_put_leases(meta.hash, block.version, meta.value_bytes)

    def end_put_leases(self, key: BlockHash, version: int, value_bytes: int) -> None:
        """They may go when room is needed, but for those that are read. Some may be missing, or not be reported yet."""
        end_lease, beyond_s = self._state.directory.end_lease, self._state.now_s() + MAX_LEASE_S
        num_missing = 0
        for index in range(value_bytes // MIN_CHUNK_BYTES + 1):
            is_here = end_lease(chunk_key(key, version, index), beyond_s=beyond_s)
            num_missing = 0 if is_here else num_missing + 1
            if num_missing > _MAX_GAP:
                return

    def free_with(self, key: BlockHash, version: int) -> None:
        """Those of an object whose version is dead."""
        by_node: dict[NodeId, list[BlockHash]] = {}
        for index in range(_MAX_FREED_CHUNKS):
            chunk = chunk_key(key, version, index)
            holders = self._state.directory.versions_of(chunk)
            if not holders:
                break
            for node in {place[0] for place, _ in holders}:
                by_node.setdefault(node, []).append(chunk)
        for node, chunks in by_node.items():
            self._telling.free(node, chunks)

    def free_put_in_vain(self, key: BlockHash, version: int, num_chunks: int) -> None:
        """Those of a put that failed; what has no object would else keep its lease until it is an orphan."""
        directory = self._state.directory
        if any(sealed == version for _, sealed in directory.versions_of(key)):
            return
        found: dict[NodeId, list[BlockHash]] = {}
        for index in range(min(num_chunks, _MAX_VAIN_CHUNKS)):
            chunk = chunk_key(key, version, index)
            for (node, _), _ in directory.versions_of(chunk):
                found.setdefault(node, []).append(chunk)
                directory.lease_until(chunk, 0.0)
        for node, hashes in found.items():
            self._telling.free(node, hashes)

    def free_orphans(self) -> None:
        """A part of the directory each time."""
        state, now_s = self._state, self._state.now_s()
        orphan_s = state.config.pool.orphan_s
        if now_s - state.started_s < orphan_s:
            return  # puts that an earlier master knew of are not known here yet
        orphans = find_orphans(
            state.directory,
            lambda key, version: self._names.is_held(key, version, now_s=now_s),
            first_row=self._next_row,
            sealed_before_s=now_s - orphan_s,
        )
        self._next_row += MAX_SCANNED
        if self._next_row >= len(state.directory.blocks.kind):
            self._next_row = 0
        for node, hashes in orphans.items():
            log.info("chunks without an object node=%s num=%d", node, len(hashes), extra=BOUNDED)
            self._telling.free(node, hashes)
