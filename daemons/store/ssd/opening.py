"""From files to an index, at start: every bucket's headers, replayed in the order they were written."""

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from daemons.core.errors import ConfigError
from daemons.store.ssd.aligned import aligned_buffer, write_all
from daemons.store.ssd.block_map import BlockMap
from daemons.store.ssd.buckets import Bucket, BucketSet, RandomBits, parse_name
from daemons.store.ssd.files import ALIGN, BucketDirectory
from daemons.store.ssd.index import BlockIndex
from daemons.store.ssd.recovery import Scan, ScanCounts, scan_bucket
from daemons.store.ssd.settings import SsdCounters

log = logging.getLogger(__name__)

_SCANNERS = 8
"""Reads in flight: a header is a page, and a disk answers many pages in the time of one."""


def open_blocks(
    directory: BucketDirectory, counters: SsdCounters, random_bits: RandomBits
) -> tuple[BlockMap, int]:
    """The blocks that are there, and the next sequence. Raises OSError, ConfigError; then all is closed."""
    blocks = BlockMap(BucketSet(directory, random_bits), BlockIndex(random_bits))
    found: list[Bucket] = []
    try:
        directory.sync()  # what an earlier process removed, and could not sync, must not come back later
        found.extend(_buckets(directory))
        return blocks, _replay(blocks, found, counters)
    except (OSError, ConfigError):
        for bucket in found:
            bucket.file.close()
        directory.close()
        raise


def _replay(blocks: BlockMap, found: list[Bucket], counters: SsdCounters) -> int:
    """The next sequence."""
    buckets = blocks.buckets
    counts = ScanCounts()
    sequence = 1
    for bucket, scan in _scans(found, buckets.directory.is_direct):
        counts.add(scan.counts)
        is_last = bucket is found[-1]
        buckets.adopt(bucket)
        bucket.used_bytes = scan.end
        _trim(bucket, scan, is_last=is_last)
        for place, record in scan.records:
            blocks.replay(bucket.bucket_id, place, record)
            sequence = max(sequence, place.sequence + 1)
    counters.recovered_blocks = len(blocks.index)
    counters.damaged_bytes = counts.damaged_bytes
    counters.torn_bytes = counts.torn_bytes
    counters.torn_records = counts.torn_records
    log.info(
        "ssd tier recovered blocks=%d buckets=%d damaged_bytes=%d torn_bytes=%d torn_records=%d",
        counters.recovered_blocks,
        len(found),
        counts.damaged_bytes,
        counts.torn_bytes,
        counts.torn_records,
    )
    return sequence


def _buckets(directory: BucketDirectory) -> Iterator[Bucket]:
    """In order of ids."""
    names = []
    for name in directory.names():
        parsed = parse_name(name)
        if parsed is None:
            log.warning("ssd tier ignores a file that is not its own name=%s", name)
        else:
            names.append((parsed, name))
    for (bucket_id, secret), name in sorted(names):
        file = directory.open(name)
        yield Bucket(bucket_id, secret, file, name, file.size() // ALIGN * ALIGN)


def _scans(found: list[Bucket], is_direct: bool) -> Iterator[tuple[Bucket, Scan]]:
    def scan(bucket: Bucket) -> Scan:
        try:
            return scan_bucket(bucket, is_direct=is_direct, is_last=bucket is found[-1])
        except OSError as error:
            # What it held is lost to us, which for a cache is a miss; the others are not.
            log.error("ssd bucket unreadable bucket=%d why=%s", bucket.bucket_id, error)  # noqa: TRY400
            return Scan(end=bucket.file_bytes)

    with ThreadPoolExecutor(_SCANNERS, "mc-ssd-scan") as pool:
        ahead: deque[Future[Scan]] = deque()
        for index, bucket in enumerate(found):
            # Not all at once: the records of a million blocks are not held, only their rows in the index.
            while len(ahead) < min(2 * _SCANNERS, len(found) - index):
                ahead.append(pool.submit(scan, found[index + len(ahead)]))
            yield bucket, ahead.popleft().result()


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
