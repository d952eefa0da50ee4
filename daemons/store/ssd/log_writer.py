"""Appends records to the bucket that is open, and returns when they are on disk. The writer's thread only.

After a failed write nothing is appended before the bucket was cut back to what is known to be on disk: behind it
there may be anything, and buckets but the last are taken for whole at the next start.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from daemons.store.ssd.aligned import (
    address_of,
    aligned_buffer,
    copy_bytes,
    round_up,
    write_all,
)
from daemons.store.ssd.buckets import Bucket, BucketSet
from daemons.store.ssd.files import ALIGN
from daemons.store.ssd.index import Location
from daemons.store.ssd.record import (
    BlockRecord,
    Place,
    TombstoneRecord,
    block_layout,
    encode_block,
    encode_tombstone,
    tombstone_bytes,
)

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Append:
    """A record on its way to the disk. `source`: a block's payload and trailer, unchanged until `done` is set."""

    record: BlockRecord | TombstoneRecord
    source: memoryview | None = None
    done: "Future[bool] | None" = None
    moved_from: Location | None = None
    """Set in a copy that eviction or compaction makes."""
    is_cancelled: bool = False
    """A block deleted before it was stored."""

    @property
    def num_bytes(self) -> int:
        if isinstance(self.record, BlockRecord):
            return block_layout(self.record)[1]
        return tombstone_bytes(self.record)


def begun() -> "Future[bool]":
    """A future that its waiter cannot cancel: the write goes on all the same."""
    future: Future[bool] = Future()
    future.set_running_or_notify_cancel()
    return future


class LogWriter:
    """`sequence` is the next record's."""

    def __init__(self, buckets: BucketSet, bucket_bytes: int, sequence: int) -> None:
        self.sequence = sequence
        self.head: Bucket | None = None
        self._buckets = buckets
        self._bucket_bytes = bucket_bytes
        self._must_cut = False

    @property
    def room(self) -> int:
        if self.head is None or self._must_cut:
            return 0
        return self._bucket_bytes - self.head.used_bytes

    def append(self, appends: Sequence[Append]) -> list[Location]:
        """All or nothing; they must fit in `room`. Raises OSError."""
        head = self.head
        assert head is not None
        assert sum(a.num_bytes for a in appends) <= self.room
        start = offset = head.used_bytes
        locations = []
        buffers: list[memoryview] = []
        for append in appends:
            place = Place(offset, self.sequence, durable_to=start)
            buffers += self._buffers(append, place, head.secret)
            locations.append(Location(head.bucket_id, offset, self.sequence))
            self.sequence += 1
            offset += append.num_bytes
        self._must_cut = True
        write_all(head.file, buffers, start)
        head.file.sync()
        self._must_cut = False
        head.used_bytes = offset
        head.has_tombstones |= any(_holds_off(append.record) for append in appends)
        return locations

    def close_head(self) -> None:
        """Give back what the bucket did not use. Raises OSError; then it stays open, and this is tried again."""
        head = self.head
        if head is None:
            return
        head.file.truncate(head.used_bytes)
        if self._must_cut:
            head.file.sync()
        head.file_bytes = head.used_bytes
        self._must_cut = False
        self.head = None

    def open_head(self) -> None:
        """Raises OSError: ENOSPC when the filesystem has no room for one more bucket."""
        assert self.head is None
        self.head = self._buckets.create(self._bucket_bytes)

    def _buffers(self, append: Append, place: Place, secret: int) -> list[memoryview]:
        record = append.record
        if isinstance(record, TombstoneRecord):
            # A tombstone that a reclaimed bucket still needed keeps its `until`; a new one holds off all before it.
            if not record.until:
                record = TombstoneRecord(record.kind, place.sequence, record.keys, record.namespace)
            return [_padded(encode_tombstone(record, place, secret))]
        assert append.source is not None
        header = encode_block(record, place, secret)
        return _block_buffers(header, record, append.source)


def _holds_off(record: BlockRecord | TombstoneRecord) -> bool:
    return isinstance(record, TombstoneRecord) and not record.is_empty


def _block_buffers(header: bytes, block: BlockRecord, source: memoryview) -> list[memoryview]:
    """The body straight from the source where it lies on a page, as slots of a segment do; else a copy."""
    body_offset, record_bytes = block_layout(block)
    body = source[: block.stored_bytes]
    if body_offset != ALIGN or address_of(body) % ALIGN:
        buffer = aligned_buffer(record_bytes)
        buffer[: len(header)] = header
        copy_bytes(buffer[body_offset : body_offset + len(body)], body)
        return [buffer[:record_bytes]]
    whole = len(body) // ALIGN * ALIGN
    ends = aligned_buffer(2 * ALIGN)
    ends[: len(header)] = header
    buffers = [ends[:ALIGN], body[:whole]]
    if whole < len(body):
        copy_bytes(ends[ALIGN : ALIGN + len(body) - whole], body[whole:])
        buffers.append(ends[ALIGN : 2 * ALIGN])
    return buffers


def _padded(packed: bytes) -> memoryview:
    buffer = aligned_buffer(len(packed))
    buffer[: len(packed)] = packed
    return buffer[: round_up(len(packed))]
