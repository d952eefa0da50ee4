"""The bucket files of one tier: their names, what lives in them, and who reads them now.

Ids only grow, one bucket is appended to at a time, and a record's sequence is above all in buckets with lower ids:
what a tombstone must hold off lies in older buckets or before it in its own.
"""

import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from daemons.store.ssd.files import BucketDirectory, BucketFile

log = logging.getLogger(__name__)

_NAME = re.compile(r"^bucket-([0-9a-f]{8})-([0-9a-f]{16})\.log$")
_MAX_ID = (1 << 32) - 1

RandomBits = Callable[[int], int]
"""Of so many bits, and nobody else can guess it; a test's follow from its seed."""


@dataclass(slots=True, eq=False)
class Bucket:
    """One file. `num_readers` counts reads in progress: a removed file is closed by the last of them."""

    bucket_id: int
    secret: int
    file: BucketFile
    name: str
    file_bytes: int
    """What it takes of the capacity."""
    used_bytes: int = 0
    """Where the next record goes."""
    live_bytes: int = 0
    """Of records the index points to, with what another bucket's footer needs for them."""
    num_live: int = 0
    first_sequence: int = 0
    """All its records have this or a higher one; 0 where it is not known."""
    has_tombstones: bool = False
    num_readers: int = 0
    is_removed: bool = False


def bucket_name(bucket_id: int, secret: int) -> str:
    return f"bucket-{bucket_id:08x}-{secret:016x}.log"


def parse_name(name: str) -> tuple[int, int] | None:
    """(id, secret), or None for a file that is not ours."""
    match = _NAME.match(name)
    return (int(match[1], 16), int(match[2], 16)) if match else None


@dataclass(slots=True)
class BucketSet:
    """All buckets, oldest first. File operations are the writer's thread's alone; counts change under its lock."""

    directory: BucketDirectory
    random_bits: RandomBits = secrets.randbits
    by_id: dict[int, Bucket] = field(default_factory=dict)
    next_id: int = 1
    unreadable: set[int] = field(default_factory=set)
    """At the start; the next one may find what is in them."""

    @property
    def file_bytes(self) -> int:
        return sum(bucket.file_bytes for bucket in list(self.by_id.values()))

    @property
    def oldest(self) -> Bucket | None:
        return next(iter(self.by_id.values()), None)

    def oldest_sequence(self, default: int) -> int:
        """No record of any bucket has a lower one."""
        sequences = [bucket.first_sequence for bucket in list(self.by_id.values())]
        return min(sequences, default=default)

    def adopt(self, bucket: Bucket) -> None:
        """A bucket found at start, in order of ids."""
        self.by_id[bucket.bucket_id] = bucket
        self.next_id = bucket.bucket_id + 1

    def create(self, num_bytes: int) -> Bucket:
        """A new one with all its space reserved and its name on disk. Raises OSError and leaves nothing."""
        assert self.next_id <= _MAX_ID, "a bucket a second would take 136 years"
        # Never used again: where the file of a failed try cannot be removed, two would have one id.
        bucket_id, self.next_id = self.next_id, self.next_id + 1
        secret = self.random_bits(64)
        name = bucket_name(bucket_id, secret)
        file = self.directory.create(name)
        try:
            file.reserve(num_bytes)
            self.directory.sync()
        except OSError:
            file.close()
            self._unlink_quietly(name)
            raise
        bucket = self.by_id[bucket_id] = Bucket(bucket_id, secret, file, name, num_bytes)
        return bucket

    def unlink(self, bucket: Bucket) -> None:
        """Its name is gone for good when this returns. Raises OSError."""
        if bucket.name in self.directory.names():
            self.directory.unlink(bucket.name)
        self.directory.sync()

    def forget(self, bucket: Bucket) -> None:
        """After `unlink`; closes it, now or after the last read."""
        del self.by_id[bucket.bucket_id]
        self.unreadable.discard(bucket.bucket_id)
        bucket.is_removed = True
        self._close_if_unused(bucket)

    def acquire(self, bucket_id: int) -> Bucket:
        bucket = self.by_id[bucket_id]
        bucket.num_readers += 1
        return bucket

    def release(self, bucket: Bucket) -> None:
        bucket.num_readers -= 1
        self._close_if_unused(bucket)

    def close(self) -> None:
        for bucket in self.by_id.values():
            bucket.file.close()
        self.directory.close()

    def _close_if_unused(self, bucket: Bucket) -> None:
        if bucket.is_removed and not bucket.num_readers:
            bucket.file.close()

    def _unlink_quietly(self, name: str) -> None:
        try:
            self.directory.unlink(name)
        except OSError as error:
            log.warning("ssd bucket left behind name=%s why=%s", name, error)
