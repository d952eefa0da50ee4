"""From files to an index, at start: every bucket's footer, or its headers where it has none."""

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from daemons.core.errors import ConfigError
from daemons.store.ssd.aligned import aligned_buffer, write_all
from daemons.store.ssd.block_map import BlockMap
from daemons.store.ssd.buckets import Bucket, BucketSet, RandomBits, parse_name
from daemons.store.ssd.delete_log import DeleteLog, is_delete_log
from daemons.store.ssd.files import ALIGN, BucketDirectory
from daemons.store.ssd.listing import Listing, read_footer, write_footer
from daemons.store.ssd.loading import IndexLoader
from daemons.store.ssd.recovery import Scan, ScanCounts, scan_bucket
from daemons.store.ssd.settings import SsdCounters

log = logging.getLogger(__name__)

_SCANNERS = 8
"""Reads in flight: a header is a page, and a disk answers many pages in the time of one."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Of one bucket. `scan` None: a footer said all."""

    bucket: Bucket
    listing: Listing
    scan: Scan | None
    is_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """What is there, and the next record's sequence."""

    blocks: BlockMap
    deletes: DeleteLog
    sequence: int


def open_blocks(
    directory: BucketDirectory,
    counters: SsdCounters,
    random_bits: RandomBits,
    delete_log_bytes: int,
) -> Opened:
    """Raises OSError, ConfigError; then all is closed."""
    buckets = BucketSet(directory, random_bits)
    found: list[Bucket] = []
    deletes: DeleteLog | None = None
    try:
        directory.sync()  # what an earlier process removed, and could not sync, must not come back later
        found.extend(_buckets(directory))
        deletes = DeleteLog(directory, random_bits, delete_log_bytes)
        loader = IndexLoader(random_bits)
        counts = _load(buckets, found, loader)
        in_buckets = list(loader.tombstones)
        loader.add_tombstones(deletes.found)
        deletes.settle(in_buckets, buckets.oldest_sequence(loader.next_sequence))
    except (OSError, ConfigError):
        for bucket in found:
            bucket.file.close()
        if deletes is not None:
            deletes.close()
        directory.close()
        raise
    blocks = BlockMap(buckets, loader.finish(found))
    _report(counters, counts, len(blocks.index), len(found))
    return Opened(blocks, deletes, loader.next_sequence)


def _load(buckets: BucketSet, found: list[Bucket], loader: IndexLoader) -> ScanCounts:
    counts = ScanCounts()
    for part in _read_all(found, buckets.directory.is_direct):
        bucket, listing = part.bucket, part.listing
        buckets.adopt(bucket)
        bucket.used_bytes = listing.end
        bucket.has_tombstones = bool(listing.tombstones)
        bucket.first_sequence = listing.first_sequence
        if part.is_unreadable:
            buckets.unreadable.add(bucket.bucket_id)
        if part.scan is not None:
            counts.add(part.scan.counts)
            _trim(bucket, part.scan, is_last=bucket is found[-1])
            _add_footer(bucket, listing)
        loader.add(bucket.bucket_id, listing)
    return counts


def _report(counters: SsdCounters, counts: ScanCounts, num_blocks: int, num_buckets: int) -> None:
    counters.recovered_blocks = num_blocks
    counters.damaged_bytes = counts.damaged_bytes
    counters.torn_bytes = counts.torn_bytes
    counters.torn_records = counts.torn_records
    counters.scanned_buckets = counts.scanned_buckets
    log.info(
        "ssd tier recovered blocks=%d buckets=%d scanned=%d damaged_bytes=%d torn_bytes=%d torn_records=%d",
        num_blocks,
        num_buckets,
        counts.scanned_buckets,
        counts.damaged_bytes,
        counts.torn_bytes,
        counts.torn_records,
    )


def _buckets(directory: BucketDirectory) -> Iterator[Bucket]:
    """In order of ids."""
    names = []
    for name in directory.names():
        parsed = parse_name(name)
        if is_delete_log(name):
            continue
        if parsed is None:
            log.warning("ssd tier ignores a file that is not its own name=%s", name)
        else:
            names.append((parsed, name))
    for (bucket_id, secret), name in sorted(names):
        file = directory.open(name)
        yield Bucket(bucket_id, secret, file, name, file.size() // ALIGN * ALIGN)


def _read_all(found: list[Bucket], is_direct: bool) -> Iterator[_Found]:
    def read(bucket: Bucket) -> _Found:
        try:
            listing = read_footer(bucket, is_direct=is_direct)
            if listing is not None:
                return _Found(bucket, listing, None)
            scan = scan_bucket(bucket, is_direct=is_direct, is_last=bucket is found[-1])
        except OSError as error:
            # What it held is lost to us, which for a cache is a miss; the others are not.
            log.error("ssd bucket unreadable bucket=%d why=%s", bucket.bucket_id, error)  # noqa: TRY400
            listing = Listing()
            listing.end = bucket.file_bytes
            return _Found(bucket, listing, None, is_unreadable=True)
        return _Found(bucket, Listing.of(scan.records), scan)

    with ThreadPoolExecutor(_SCANNERS, "mc-ssd-scan") as pool:
        ahead: deque[Future[_Found]] = deque()
        for index in range(len(found)):
            # Not all at once: the records of a million scanned blocks are not held, only their rows.
            while len(ahead) < min(2 * _SCANNERS, len(found) - index):
                ahead.append(pool.submit(read, found[index + len(ahead)]))
            yield ahead.popleft().result()


def _trim(bucket: Bucket, scan: Scan, *, is_last: bool) -> None:
    """Cut the torn end. What is taken for whole from now on must be on disk as it is now."""
    if is_last:
        for offset in scan.torn_offsets:
            write_all(bucket.file, [aligned_buffer(ALIGN)], offset)
    if scan.end < bucket.file_bytes:
        bucket.file.truncate(scan.end)
        bucket.file_bytes = scan.end
    if is_last:
        bucket.file.sync()


def _add_footer(bucket: Bucket, listing: Listing) -> None:
    """So that the next start does not scan it again."""
    if not bucket.used_bytes:
        return
    try:
        bucket.file_bytes = write_footer(bucket, listing)
    except OSError as error:
        log.warning("ssd bucket has no footer bucket=%d why=%s", bucket.bucket_id, error)
