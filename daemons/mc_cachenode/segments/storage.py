"""This node's memory: each segment and, beside it, the index by which a later process takes its blocks over.

Both are kept when the process ends in whatever way, unless `segment.keep` is off: see places. Of files, the lock on the
segment's guards both; it ends with the process.
"""

import gc
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from daemons.config.common import size_bytes
from daemons.config.mc_cachenode import SegmentSection
from daemons.config.segment_cut import SLOT_ALIGN
from daemons.core.errors import McError, TransferError
from daemons.core.ids import BlockHash, NodeId
from daemons.core.units import MIB, format_size
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.mc_cachenode.segments.places import DirectoryPlace, FdStorePlace, Place
from daemons.mc_cachenode.segments.segment_directory import check_there
from daemons.mc_cachenode.segments.segment_list import AddedSegment
from daemons.service.fd_store import FdStore
from daemons.store.index.format import (
    ClearedRecord,
    DeadRecord,
    IndexContents,
    IndexHeader,
    IndexReader,
    PinRecord,
    SealedRecord,
    replay,
)
from daemons.store.index.log import IndexLog
from daemons.store.segment.segment import Segment
from daemons.transfer import prefault

log = logging.getLogger(__name__)

_MAX_INDEX_BYTES: Final = 64 * MIB
"""Beyond the segment's own size: records are smaller than slots, and compaction bounds what is garbage."""

OnLost = Callable[[str, int], object]
"""Called with what was lost of an earlier process's index or blocks, and how many: for the metrics."""


@dataclass(slots=True)
class StoredSegment:
    """Open. `index` None: nothing is kept."""

    segment: Segment
    place: Place
    index: IndexLog | None = None

    @property
    def is_index_written(self) -> bool:
        return self.index is not None and self.index.is_written

    def close(self, num_blocks: int) -> None:
        """As the process ends."""
        is_kept = self.is_index_written  # without an index it is of no use
        self.segment.memory.is_kept = is_kept
        if self.index is not None:
            self.index.close()
        if is_kept:
            log.info(
                "segment kept path=%s size=%s blocks=%d; %s",
                self.place.path or "fd store",
                format_size(self.segment.slots.capacity_bytes),
                num_blocks,
                "remove the file to free the memory"
                if self.place.path
                else "systemd frees the memory when the unit is stopped",
            )
        self.place.close(is_kept=is_kept)
        self.segment.close()

    def discard(self) -> None:
        """Give the memory back; nobody has it registered any more."""
        self.segment.memory.is_kept = False
        if self.index is not None:
            self.index.close()
        self.place.index.remove()
        self.segment.close()
        self.place.close(is_kept=False)


@dataclass(slots=True)
class Storage:
    """The first segment, and what could be opened of those that were added."""

    first: StoredSegment
    replicas: ReplicaTable
    added: dict[int, StoredSegment] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    """Why each of these could not be."""

    @property
    def all(self) -> list[StoredSegment]:
        return [self.first, *self.added.values()]

    @property
    def is_index_written(self) -> bool:
        return all(each.is_index_written for each in self.all)

    def mend_indexes(self) -> None:
        """Now and then: those that could not be written are tried again."""
        for each in self.all:
            if each.index is not None:
                each.index.retry()

    def close(self) -> None:
        self.replicas.flush()
        for each in reversed(self.all):
            each.close(self.replicas.num_sealed_in(each.segment))


@dataclass(frozen=True, slots=True)
class BlocksOf:
    """What the index of one segment names of the node's blocks; that of the first also has what is of no segment."""

    replicas: ReplicaTable
    segment: Segment

    @property
    def num_sealed(self) -> int:
        return self.replicas.num_sealed_in(self.segment)

    def hashes(self) -> list[BlockHash]:
        sealed = self.replicas.sealed()
        return [each.meta.hash for each in sealed if each.segment is self.segment]

    def record_of(self, block_hash: BlockHash) -> SealedRecord | None:
        return self.replicas.record_of(block_hash, self.segment)

    def cleared(self) -> Iterable[ClearedRecord]:
        return () if self.segment.number else self.replicas.remembered.cleared()

    def dead(self) -> Iterable[DeadRecord]:
        return () if self.segment.number else self.replicas.remembered.dead()

    def pinned(self) -> Iterable[PinRecord]:
        return () if self.segment.number else self.replicas.remembered.pinned()


def segment_path(config: SegmentSection, node: NodeId) -> Path:
    """One file per node, in a directory of this user."""
    return _path_in(Path(config.directory), node, "segment")


def added_path(added: AddedSegment, node: NodeId) -> Path:
    return _path_in(Path(added.directory), node, f"{added.number}.segment")


def added_place(added: AddedSegment, node: NodeId) -> DirectoryPlace:
    """Raises NotFound where its directory is gone, or its tmpfs is not mounted; ConfigError."""
    check_there(added.directory, added.mount)
    return DirectoryPlace(added_path(added, node))


def open_storage(
    config: SegmentSection,
    node: NodeId,
    on_lost: OnLost,
    fd_store: FdStore,
    added: Sequence[AddedSegment] = (),
) -> Storage:
    """With all blocks of the process before, where it kept them. Raises ConfigError, Exhausted.

    Of `added` only those that are there already, or could not be: what must be allocated first takes its time.
    """
    place = _place(config, node, fd_store)
    keeps = config.keep and place.does_keep
    capacity_bytes = size_bytes(config.size, "segment.size")
    segment = _reopen(place, capacity_bytes) if keeps else None
    if segment is None:
        segment = place.create(capacity_bytes, _log_progress)
    segment.memory.is_kept = keeps
    if config.prefault:
        prefault(segment.array)
    replicas = ReplicaTable(segment)
    storage = Storage(StoredSegment(segment, place), replicas)
    if not keeps:
        return storage
    with _no_collections():
        contents = _read_index(place, _header(node, segment), on_lost)
        _remember(replicas, contents)
        _take_over(replicas, segment, contents, on_lost)
        for each in added:
            _open_added(storage, each, node, on_lost)
        for stored in storage.all:
            keep_index(stored, replicas, node)
    return storage


def keep_index(stored: StoredSegment, replicas: ReplicaTable, node: NodeId) -> None:
    """From now on a later process can take its blocks over."""
    segment = stored.segment
    segment.memory.is_kept = True
    blocks = BlocksOf(replicas, segment)
    stored.index = IndexLog(stored.place.index, _header(node, segment), blocks)
    replicas.keep_in(stored.index, segment)


def _open_added(storage: Storage, added: AddedSegment, node: NodeId, on_lost: OnLost) -> None:
    try:
        place = added_place(added, node)
        segment = _reopen(place, added.size_bytes, added.number)
    except (McError, OSError) as error:  # the others are there all the same
        storage.failed[added.number] = str(error)
        log.error("segment not opened number=%d why=%s", added.number, error)  # noqa: TRY400 - no bug
        return
    if segment is None:
        return
    storage.added[added.number] = StoredSegment(segment, place)
    contents = _read_index(place, _header(node, segment), on_lost)
    _take_over(storage.replicas, segment, contents, on_lost)
    storage.replicas.segments.add(segment)
    if added.is_leaving:
        storage.replicas.segments.leave(segment)


def _header(node: NodeId, segment: Segment) -> IndexHeader:
    return IndexHeader(node, segment.slots.capacity_bytes, segment.slots.slab_bytes)


def _path_in(directory: Path, node: NodeId, kind: str) -> Path:
    return directory / f"mooncake-{os.getuid()}" / f"{node.replace('/', '_')}.{kind}"


def _place(config: SegmentSection, node: NodeId, fd_store: FdStore) -> Place:
    if config.directory:
        place = Path(config.index_directory)
        index_path = _path_in(place, node, "index") if config.index_directory else None
        return DirectoryPlace(segment_path(config, node), index_path)
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


def _remember(replicas: ReplicaTable, contents: IndexContents) -> None:
    for record in contents.cleared:
        replicas.remembered.clear(record.filter, record.at_ms)
    for dead in contents.dead:
        replicas.remembered.die(dead.key, dead.version, dead.at_ms)
    replicas.remembered.restore_pins(list(contents.pins.values()))


def _take_over(
    replicas: ReplicaTable, segment: Segment, contents: IndexContents, on_lost: OnLost
) -> None:
    num_lost = replicas.restore(list(contents.live.values()), segment)
    if contents.live:
        log.info("blocks taken over num=%d lost=%d", replicas.num_sealed_in(segment), num_lost)
    if num_lost:
        on_lost("block", num_lost)
        log.warning("blocks lost num=%d why=their slots hold something else now", num_lost)


def _reopen(place: Place, capacity_bytes: int, number: int = 0) -> Segment | None:
    """None where there is nothing to take over. Raises ConfigError."""
    try:
        memory = place.reopen(capacity_bytes // SLOT_ALIGN * SLOT_ALIGN)
    except TransferError as error:
        log.warning("segment starts empty path=%s why=%s", place.path or "fd store", error.message)
        return None
    return None if memory is None else Segment(memory, number=number)


def _log_progress(done: int, total: int) -> None:
    log.info("segment allocated=%s of=%s", format_size(done), format_size(total))


def _read_index(place: Place, header: IndexHeader, on_lost: OnLost) -> IndexContents:
    """Whatever the file holds, only what verifies is returned; what does not is logged and counted."""
    path = place.index.name
    reader, why = None, None
    for nth in count():
        try:
            data = place.read_index(header.segment_bytes + _MAX_INDEX_BYTES, nth)
            reader = IndexReader(data, header)
            break
        except FileNotFoundError:
            break
        except (OSError, TransferError) as error:
            on_lost("index", 1)
            why = error
    if reader is None:
        if why is not None:
            log.warning("segment starts empty path=%s why=%s", path, why)
        return IndexContents()
    if why is not None:
        log.warning("an older index is used path=%s why=%s", path, why)
    contents = replay(reader)
    if reader.num_bad_records:
        on_lost("record", reader.num_bad_records)
        log.warning("index records passed over path=%s num=%d", path, reader.num_bad_records)
    if reader.cut_bytes:
        on_lost("tail", 1)
        log.warning("index cut path=%s bytes=%d", path, reader.cut_bytes)
    return contents
