"""Reading buckets back after a start: headers only, page by page where one is damaged.

Every bucket but the last was on disk before the next one began. In the last, headers say up to where it was; blocks
behind that point are read and verified, since a header may have arrived without its body.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from daemons.core.ids import short
from daemons.core.units import MIB
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.store.lower import BlockRecord
from daemons.store.segment.seal import BadSeal, parse_trailer, payload_checksums
from daemons.store.ssd.aligned import aligned_buffer, read_into
from daemons.store.ssd.buckets import Bucket
from daemons.store.ssd.files import ALIGN
from daemons.store.ssd.record import (
    MAX_READ_DELETES,
    Header,
    Place,
    TombstoneRecord,
    decode_header,
    decode_tombstone,
)

log = logging.getLogger(__name__)

_WINDOW_BYTES = MIB
"""Read at once where headers are searched for."""

_ZEROS = bytes(ALIGN)


@dataclass(slots=True)
class ScanCounts:
    """What a scan met that is no record."""

    damaged_bytes: int = 0
    """Neither zero nor part of a record, with records behind them."""
    torn_bytes: int = 0
    """The same at the end of the log."""
    torn_records: int = 0
    """Their header arrived, their body did not or was damaged."""
    scanned_buckets: int = 0
    """Had no footer."""

    def add(self, other: "ScanCounts") -> None:
        self.damaged_bytes += other.damaged_bytes
        self.torn_bytes += other.torn_bytes
        self.torn_records += other.torn_records
        self.scanned_buckets += other.scanned_buckets


@dataclass(slots=True)
class Scan:
    """One bucket's records in order, and where the last one ends."""

    records: list[tuple[Place, BlockRecord | TombstoneRecord]] = field(default_factory=list)
    torn_offsets: list[int] = field(default_factory=list)
    """Of records without their body: erased, or the next start would take them for whole."""
    end: int = 0
    counts: ScanCounts = field(default_factory=ScanCounts)


def scan_bucket(bucket: Bucket, *, is_direct: bool, is_last: bool) -> Scan:
    """Raises OSError where the disk cannot be read, ConfigError for a newer format."""
    reader = _Pages(bucket, is_direct)
    scan = Scan(counts=ScanCounts(scanned_buckets=1))
    headers = list(_headers(bucket, reader, scan))
    durable_to = bucket.file_bytes
    if is_last:
        durable_to = max((header.place.durable_to for header in headers), default=0)
    for header in headers:
        record = _record(bucket, reader, header, verify=header.place.offset >= durable_to)
        if record is None:
            scan.counts.torn_records += 1
            scan.torn_offsets.append(header.place.offset)
            log.warning(
                "ssd record dropped bucket=%d offset=%d kind=%s why=body does not match",
                bucket.bucket_id,
                header.place.offset,
                header.kind.name.lower(),
            )
        else:
            scan.records.append((header.place, record))
    if scan.counts.damaged_bytes or scan.counts.torn_bytes:
        log.warning(
            "ssd bucket damaged bucket=%d bytes=%d torn_tail_bytes=%d",
            bucket.bucket_id,
            scan.counts.damaged_bytes,
            scan.counts.torn_bytes,
        )
    return scan


class _Pages:
    """Pages of one bucket; single ones while headers follow each other, windows while one is searched."""

    def __init__(self, bucket: Bucket, is_direct: bool) -> None:
        self._bucket = bucket
        self._is_direct = is_direct
        self._page = aligned_buffer(ALIGN)
        self._window = aligned_buffer(_WINDOW_BYTES)
        self._window_start = 0
        self._window_bytes = 0

    def page(self, offset: int) -> memoryview:
        read_into(self._bucket.file, offset, self._page, is_direct=self._is_direct)
        return self._page

    def searched(self, offset: int) -> memoryview:
        at = offset - self._window_start
        if not 0 <= at < self._window_bytes:
            self._window_start = offset
            self._window_bytes = min(_WINDOW_BYTES, self._bucket.file_bytes - offset)
            self.read(offset, self._window[: self._window_bytes])
            at = 0
        return self._window[at : at + ALIGN]

    def read(self, offset: int, target: memoryview) -> None:
        read_into(self._bucket.file, offset, target, is_direct=self._is_direct)


def _headers(bucket: Bucket, pages: _Pages, scan: Scan) -> Iterator[Header]:
    offset, bad_bytes, is_searching = 0, 0, False
    while offset + ALIGN <= bucket.file_bytes:
        page = pages.searched(offset) if is_searching else pages.page(offset)
        header = decode_header(page, offset, bucket.secret)
        if header is None or offset + header.record_bytes > bucket.file_bytes:
            # A torn record, damage, or the end: whatever is valid behind it is found all the same.
            bad_bytes += ALIGN if bytes(page) != _ZEROS else 0
            is_searching = True
            offset += ALIGN
            continue
        scan.counts.damaged_bytes += bad_bytes
        bad_bytes, is_searching = 0, False
        offset += header.record_bytes
        scan.end = offset
        yield header
    scan.counts.torn_bytes += bad_bytes


def _record(
    bucket: Bucket, pages: _Pages, header: Header, *, verify: bool
) -> BlockRecord | TombstoneRecord | None:
    start = header.place.offset + header.body_offset
    if header.block is not None:
        if verify and not _is_intact(pages, start, header.block):
            return None
        return header.block
    if header.body_bytes > MAX_READ_DELETES * HASH_BYTES:
        return None
    body = memoryview(bytearray(header.body_bytes))
    pages.read(start, body)
    return decode_tombstone(header, body, bucket.secret)


def _is_intact(pages: _Pages, start: int, block: BlockRecord) -> bool:
    stored = aligned_buffer(block.stored_bytes)[: block.stored_bytes]
    pages.read(start, stored)
    try:
        verify_block(block, stored)
    except BadSeal:
        return False
    return True


def verify_block(
    block: BlockRecord, stored: memoryview, checksums: list[int] | None = None
) -> None:
    """Payload and trailer against the seal; `checksums` of equal layers where they are known. Raises BadSeal."""
    trailer = parse_trailer(stored[block.length :], block.seal_checksum, block.meta.hash)
    if trailer.length != block.length or trailer.num_layers != block.num_layers:
        raise BadSeal(f"the trailer of block {short(block.meta.hash)} tells another shape")
    if checksums is None or trailer.piece_bytes:
        payload = stored[: block.length]
        checksums = payload_checksums(payload, block.num_layers, trailer.piece_bytes)
    if list(trailer.checksums) != checksums:
        raise BadSeal(f"block {short(block.meta.hash)} is not what was sealed")
