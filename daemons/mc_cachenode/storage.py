"""This node's memory as files: the segment and, beside it, the index by which a later process takes its blocks over.

Both are kept when the process ends in whatever way, unless `segment.keep` is off. The lock on the segment's file
guards both; it ends with the process.
"""

import contextlib
import gc
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from daemons.config.common import size_bytes
from daemons.config.mc_cachenode import SegmentSection
from daemons.config.segment_cut import SLOT_ALIGN
from daemons.core.errors import ConfigError, TransferError
from daemons.core.ids import NodeId
from daemons.core.units import MIB, format_size
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.store.index_format import (
    IndexContents,
    IndexHeader,
    IndexReader,
    WrongIndex,
    replay,
)
from daemons.store.index_log import IndexLog
from daemons.store.segment import Segment
from daemons.transfer import prefault, reopen_shared

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
    path: Path

    @property
    def is_index_written(self) -> bool:
        return self.index is not None and self.index.is_written

    def close(self) -> None:
        self.replicas.flush()
        self.segment.memory.is_kept = self.is_index_written  # without an index it is of no use
        if self.index is not None:
            self.index.close()
        if self.segment.memory.is_kept:
            log.info(
                "segment kept path=%s size=%s blocks=%d; remove the file to free the memory",
                self.path,
                format_size(self.segment.slots.capacity_bytes),
                self.replicas.num_sealed,
            )
        self.segment.close()
        _remove_if_empty(self.path.parent)


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()


def segment_path(config: SegmentSection, node: NodeId) -> Path:
    """One file per node, in a directory of this user."""
    return Path(config.directory) / f"mooncake-{os.getuid()}" / f"{node.replace('/', '_')}.segment"


def open_storage(config: SegmentSection, node: NodeId, on_lost: OnLost) -> Storage:
    """With all blocks of the process before, where it kept them. Raises ConfigError, Exhausted."""
    path = segment_path(config, node)
    _check_directory(path.parent)
    index_path = path.with_suffix(".index")
    segment = _reopen(config, path) if config.keep else None
    if segment is None:
        segment = _create(config, path)
        with contextlib.suppress(OSError):
            index_path.unlink(missing_ok=True)  # only now that the lock is ours
    segment.memory.is_kept = config.keep
    if config.prefault:
        prefault(segment.array)
    replicas = ReplicaTable(segment)
    if not config.keep:
        return Storage(segment, replicas, None, path)
    header = IndexHeader(node, segment.slots.capacity_bytes, segment.slots.slab_bytes)
    with _no_collections():
        _take_over(replicas, _read_index(index_path, header, on_lost), on_lost)
        index = IndexLog(index_path, header, replicas)
    replicas.keep_in(index)
    return Storage(segment, replicas, index, path)


def _check_directory(directory: Path) -> None:
    """Whoever owns it could put any file in the place of ours. Raises ConfigError."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = directory.lstat()
    except OSError as error:
        raise ConfigError(f"cannot create {directory}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ConfigError(
            f"{directory} is no directory of this user; remove it, or choose another segment.directory"
        )


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


def _reopen(config: SegmentSection, path: Path) -> Segment | None:
    """None where there is nothing to take over."""
    capacity = size_bytes(config.size, "segment.size") // SLOT_ALIGN * SLOT_ALIGN
    try:
        memory = reopen_shared(path, capacity)
    except TransferError as error:
        log.warning("segment starts empty path=%s why=%s", path, error.message)
        return None
    return None if memory is None else Segment(memory)


def _create(config: SegmentSection, path: Path) -> Segment:
    def report(done: int, total: int) -> None:
        log.info("segment allocated=%s of=%s", format_size(done), format_size(total))

    try:
        return Segment.create(size_bytes(config.size, "segment.size"), path, progress=report)
    except BaseException:
        _remove_if_empty(path.parent)
        raise


def _index_bytes(path: Path, segment_bytes: int) -> bytes:
    """Raises OSError, WrongIndex."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise WrongIndex("it is no file")
        if status.st_size > segment_bytes + _MAX_INDEX_BYTES:
            raise WrongIndex(f"it has {format_size(status.st_size)}, more than any index")
        return file.read()


def _read_index(path: Path, header: IndexHeader, on_lost: OnLost) -> IndexContents:
    """Whatever the file holds, only what verifies is returned; what does not is logged and counted."""
    try:
        reader = IndexReader(_index_bytes(path, header.segment_bytes), header)
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
