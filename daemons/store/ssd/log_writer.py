"""Appends records to the bucket that is open, and returns when they are on disk. The writer's thread only.

After a failed write nothing is appended before the bucket was cut back to what is known to be on disk: behind it
there may be anything, and buckets but the last are taken for whole at the next start.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from daemons.store.lower import BlockRecord
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
from daemons.store.ssd.listing import FOOTER_BYTES, Listing, room_bytes, write_footer
from daemons.store.ssd.record import (
    Place,
    TombstoneRecord,
    block_layout,
    encode_block,
    encode_tombstone,
    record_bytes,
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
        return record_bytes(self.record)

    @property
    def room_bytes(self) -> int:
        return room_bytes(self.record)


class LogWriter:
    """`sequence` is the next record's."""

    def __init__(self, buckets: BucketSet, bucket_bytes: int, sequence: int) -> None:
        self.sequence = sequence
        self.head: Bucket | None = None
        self._buckets = buckets
        self._bucket_bytes = bucket_bytes
        self._must_cut = False
        self._listing = Listing()
        self._listed_bytes = 0
        """At most, in the footer."""

    @property
    def room(self) -> int:
        """For `room_bytes` of what comes next."""
        if self.head is None or self._must_cut:
            return 0
        return self._bucket_bytes - self.head.used_bytes - FOOTER_BYTES - self._listed_bytes

    def append(self, appends: Sequence[Append]) -> list[Location]:
        """All or nothing; they must fit in `room`. Raises OSError."""
        head = self.head
        assert head is not None
        assert sum(a.room_bytes for a in appends) <= self.room
        start = offset = head.used_bytes
        places = []
        records = []
        buffers: list[memoryview] = []
        for append in appends:
            place = Place(offset, self.sequence, durable_to=start)
            record = placed(append.record, place.sequence)
            buffers += _buffers(record, append.source, place, head.secret)
            places.append(place)
            records.append(record)
            self.sequence += 1
            offset += append.num_bytes
        self._must_cut = True
        write_all(head.file, buffers, start)
        head.file.sync()
        self._must_cut = False
        head.used_bytes = offset
        for place, record in zip(places, records, strict=True):
            self._listing.add(place, record)
            self._listed_bytes += room_bytes(record) - record_bytes(record)
        head.has_tombstones = bool(self._listing.tombstones)
        return [Location(head.bucket_id, place.offset, place.sequence) for place in places]

    def close_head(self) -> None:
        """Write its footer and give back what the bucket did not use. Raises OSError; then it stays open, and this
        is tried again.
        """
        head = self.head
        if head is None:
            return
        if self._must_cut:
            _cut(head, head.used_bytes)
        self._must_cut = True
        num_bytes = self._write_footer(head)
        _cut(head, num_bytes)
        head.file_bytes = num_bytes
        self._must_cut = False
        self.head = None

    def _write_footer(self, head: Bucket) -> int:
        """Where the file ends; without a footer the next start only takes longer."""
        if not head.used_bytes:
            return 0
        try:
            return write_footer(head, self._listing)
        except OSError as error:
            log.warning("ssd bucket has no footer bucket=%d why=%s", head.bucket_id, error)
            return head.used_bytes

    def open_head(self) -> None:
        """Raises OSError: ENOSPC when the filesystem has no room for one more bucket."""
        assert self.head is None
        self._listing, self._listed_bytes = Listing(), 0
        self.head = self._buckets.create(self._bucket_bytes)
        self.head.first_sequence = self.sequence


def _cut(bucket: Bucket, num_bytes: int) -> None:
    bucket.file.truncate(num_bytes)
    bucket.file.sync()


def placed(record: BlockRecord | TombstoneRecord, sequence: int) -> BlockRecord | TombstoneRecord:
    """As it is written: a tombstone that a reclaimed bucket still needed keeps its `until`, a new one holds off all
    before it.
    """
    if isinstance(record, BlockRecord) or record.until:
        return record
    return TombstoneRecord(record.kind, sequence, record.keys, record.namespace)


def _buffers(
    record: BlockRecord | TombstoneRecord, source: memoryview | None, place: Place, secret: int
) -> list[memoryview]:
    if isinstance(record, TombstoneRecord):
        return [_padded(encode_tombstone(record, place, secret))]
    assert source is not None
    return _block_buffers(encode_block(record, place, secret), record, source)


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
