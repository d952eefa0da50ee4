"""This node's memory: the segment and, beside it, the index by which a later process takes its blocks over.

Both are kept when the process ends in whatever way, unless `segment.keep` is off: see places. Of files, the lock on the
segment's guards both; it ends with the process.
"""

import gc
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from daemons.config.common import size_bytes
from daemons.config.mc_cachenode import SegmentSection
from daemons.config.segment_cut import SLOT_ALIGN
from daemons.core.errors import TransferError
from daemons.core.ids import NodeId
from daemons.core.units import MIB, format_size
from daemons.mc_cachenode.places import DirectoryPlace, FdStorePlace, Place
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.service.fd_store import FdStore
from daemons.store.index_format import (
    IndexContents,
    IndexHeader,
    IndexReader,
    replay,
)
from daemons.store.index_log import IndexLog
from daemons.store.segment import Segment
from daemons.transfer import prefault

log = logging.getLogger(__name__)

_MAX_INDEX_BYTES: Final = 64 * MIB
"""Beyond the segment's own size: records are smaller than slots, and compaction bounds what is garbage."""

OnLost = Callable[[str, int], object]
"""Called with what was lost of an earlier process's index or blocks, and how many: for the metrics."""


@dataclass(slots=True)
class Storage:
    """Open. `index` None: nothing is kept."""

    segment: Segment
    replicas: ReplicaTable
    index: IndexLog | None
    place: Place

    @property
    def is_index_written(self) -> bool:
        return self.index is not None and self.index.is_written

    def close(self) -> None:
        self.replicas.flush()
        is_kept = self.is_index_written  # without an index it is of no use
        self.segment.memory.is_kept = is_kept
        if self.index is not None:
            self.index.close()
        if is_kept:
            log.info(
                "segment kept path=%s size=%s blocks=%d; %s",
                self.place.path or "fd store",
                format_size(self.segment.slots.capacity_bytes),
                self.replicas.num_sealed,
                "remove the file to free the memory"
                if self.place.path
                else "systemd frees the memory when the unit is stopped",
            )
        self.place.close(is_kept=is_kept)
        self.segment.close()


def segment_path(config: SegmentSection, node: NodeId) -> Path:
    """One file per node, in a directory of this user."""
    return Path(config.directory) / f"mooncake-{os.getuid()}" / f"{node.replace('/', '_')}.segment"


def open_storage(
    config: SegmentSection, node: NodeId, on_lost: OnLost, fd_store: FdStore
) -> Storage:
    """With all blocks of the process before, where it kept them. Raises ConfigError, Exhausted."""
    place = _place(config, node, fd_store)
    keeps = config.keep and place.does_keep
    segment = _reopen(config, place) if keeps else None
    if segment is None:
        segment = _create(config, place)
    segment.memory.is_kept = keeps
    if config.prefault:
        prefault(segment.array)
    replicas = ReplicaTable(segment)
    if not keeps:
        return Storage(segment, replicas, None, place)
    header = IndexHeader(node, segment.slots.capacity_bytes, segment.slots.slab_bytes)
    with _no_collections():
        _take_over(replicas, _read_index(place, header, on_lost), on_lost)
        index = IndexLog(place.index, header, replicas)
    replicas.keep_in(index)
    return Storage(segment, replicas, index, place)


def _place(config: SegmentSection, node: NodeId, fd_store: FdStore) -> Place:
    if config.directory:
        return DirectoryPlace(segment_path(config, node))
    if config.keep and not fd_store.is_there:
        log.warning(
            "blocks end with this process: `segment.directory` is empty, and no systemd keeps its memory"
        )
    return FdStorePlace(fd_store, node)


@contextmanager
def _no_collections() -> Iterator[None]:
    """A million new objects without a cycle among them: the collector would look at them again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _take_over(replicas: ReplicaTable, contents: IndexContents, on_lost: OnLost) -> None:
    for record in contents.cleared:
        replicas.remembered.clear(record.filter, record.at_ms)
    for dead in contents.dead:
        replicas.remembered.die(dead.key, dead.version, dead.at_ms)
    replicas.remembered.restore_pins(list(contents.pins.values()))
    num_lost = replicas.restore(list(contents.live.values()))
    if contents.live:
        log.info("blocks taken over num=%d lost=%d", replicas.num_sealed, num_lost)
    if num_lost:
        on_lost("block", num_lost)
        log.warning("blocks lost num=%d why=their slots hold something else now", num_lost)


def _reopen(config: SegmentSection, place: Place) -> Segment | None:
    """None where there is nothing to take over."""
    capacity = size_bytes(config.size, "segment.size") // SLOT_ALIGN * SLOT_ALIGN
    try:
        memory = place.reopen(capacity)
    except TransferError as error:
        log.warning("segment starts empty path=%s why=%s", place.path or "fd store", error.message)
        return None
    return None if memory is None else Segment(memory)


def _create(config: SegmentSection, place: Place) -> Segment:
    def report(done: int, total: int) -> None:
        log.info("segment allocated=%s of=%s", format_size(done), format_size(total))

    return place.create(size_bytes(config.size, "segment.size"), report)


def _read_index(place: Place, header: IndexHeader, on_lost: OnLost) -> IndexContents:
    """Whatever the file holds, only what verifies is returned; what does not is logged and counted."""
    path = place.index.name
    try:
        data = place.read_index(header.segment_bytes + _MAX_INDEX_BYTES)
        reader = IndexReader(data, header)
    except FileNotFoundError:
        return IndexContents()
    except (OSError, TransferError) as error:
        on_lost("index", 1)
        log.warning("segment starts empty path=%s why=%s", path, error)
        return IndexContents()
    contents = replay(reader)
    if reader.num_bad_records:
        on_lost("record", reader.num_bad_records)
        log.warning("index records passed over path=%s num=%d", path, reader.num_bad_records)
    if reader.cut_bytes:
        on_lost("tail", 1)
        log.warning("index cut path=%s bytes=%d", path, reader.cut_bytes)
    return contents
