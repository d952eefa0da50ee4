"""The second home of tombstones: a file beside the buckets, so that the loss of any one file brings nothing back.

A delete is done when its tombstone is on disk in the open bucket and here. An older version that a put replaced is
held off here too, for the record that replaced it may be what gets lost. Tombstones are true for ever, so none is
wrong twice, from a file that should be gone, or after a failed write. Rewritten, without those that no bucket needs
any more, when it has grown. The writer's thread only, but for the byte counts.
"""

import logging
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import xxhash

from daemons.core.ids import BlockHash
from daemons.store.ssd.aligned import aligned_buffer, read_into, round_up, write_all
from daemons.store.ssd.buckets import Bucket, RandomBits
from daemons.store.ssd.files import ALIGN, BucketDirectory
from daemons.store.ssd.listing import pack_tombstones, unpack_tombstones
from daemons.store.ssd.record import RecordKind, TombstoneRecord

log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"^deletes-([0-9a-f]{8})-([0-9a-f]{16})\.log$")
_FORMAT: Final = 1
_MAGIC: Final = b"MCSD"
_HEADER: Final = struct.Struct("<Q4sBBHQQ")
"""checksum of all behind it, magic, format, zero, zero · offset, bytes of the body"""
_PER_CHUNK: Final = 4096


def is_delete_log(name: str) -> bool:
    return _NAME.match(name) is not None


def merged(tombstones: Iterable[TombstoneRecord], oldest: int) -> list[TombstoneRecord]:
    """What holds off as much of that with `oldest` or a higher sequence; equal for equal sets."""
    until_by_key: dict[BlockHash, int] = {}
    until_by_clear: dict[tuple[RecordKind, bytes], int] = {}
    for tombstone in tombstones:
        until = tombstone.until
        if until <= oldest:
            continue
        for key in tombstone.keys:
            until_by_key[key] = max(until, until_by_key.get(key, 0))
        if tombstone.kind is not RecordKind.DELETES:
            clear = tombstone.kind, tombstone.namespace
            until_by_clear[clear] = max(until, until_by_clear.get(clear, 0))
    keys_by_until: dict[int, list[BlockHash]] = {}
    for key, until in until_by_key.items():
        keys_by_until.setdefault(until, []).append(key)
    return [
        TombstoneRecord(kind, until, (), namespace)
        for (kind, namespace), until in sorted(until_by_clear.items())
    ] + [
        TombstoneRecord(RecordKind.DELETES, until, tuple(sorted(keys)))
        for until, keys in sorted(keys_by_until.items())
    ]


class DeleteLog:
    """Files are read when it is built; `settle` comes before the first append. Raises OSError.

    `allotted_bytes` of the tier's capacity are for it; more only while more than half of that is needed.
    """

    def __init__(
        self, directory: BucketDirectory, random_bits: RandomBits, allotted_bytes: int
    ) -> None:
        self.found: list[TombstoneRecord] = []
        """By `__init__`, until `settle`."""
        self._directory = directory
        self._random_bits = random_bits
        self._min_bytes = allotted_bytes
        self._needed_bytes = 0
        self._head: Bucket | None = None
        """Of the files, that which is appended to."""
        self._files: list[Bucket] = []
        names = [
            (match[1], match[2], match[0]) for match in map(_NAME.match, directory.names()) if match
        ]
        for number, secret, name in sorted(names):
            file = directory.open(name)
            bucket = Bucket(int(number, 16), int(secret, 16), file, name, _pages(file.size()))
            self._files.append(bucket)
        self._next_id = 1 + max((bucket.bucket_id for bucket in self._files), default=0)
        for bucket in self._files:
            try:
                self.found += self._read(bucket)
            except OSError as error:
                log.error("ssd delete log unreadable name=%s why=%s", bucket.name, error)  # noqa: TRY400

    @property
    def file_bytes(self) -> int:
        return sum(bucket.file_bytes for bucket in list(self._files))

    @property
    def allotted_bytes(self) -> int:
        """A rewrite needs old and new side by side."""
        return max(self._min_bytes, 4 * self._needed_bytes, self.file_bytes)

    def settle(self, in_buckets: Iterable[TombstoneRecord], oldest: int) -> None:
        """After the start: what was found in only one place is in both again. A disk that fails leaves it as it was."""
        found, self.found = self.found, []
        wanted = merged([*found, *in_buckets], oldest)
        if len(self._files) <= 1 and wanted == merged(found, oldest):
            self._head = self._files[-1] if self._files else None
            if self._head is not None:
                self._head.used_bytes = self._head.file_bytes
            return
        try:
            self._begin(wanted, list(self._files))
        except OSError as error:
            log.warning("ssd delete log not written why=%s", error)

    def append(self, tombstones: Sequence[TombstoneRecord], oldest: int) -> None:
        """On disk when it returns; `oldest` is the lowest sequence of any bucket. Raises OSError."""
        head = self._head
        if head is not None:
            packed = _chunk(tombstones, head.used_bytes, head.secret)
            if head.used_bytes + len(packed) <= self.allotted_bytes // 2:
                self._append(head, packed)
                return
        self._rewrite(tombstones, oldest)

    def close(self) -> None:
        for bucket in self._files:
            bucket.file.close()

    def _append(self, head: Bucket, packed: memoryview) -> None:
        try:
            write_all(head.file, [packed], head.used_bytes)
            head.file.sync()
        except OSError:
            self._head = (
                None  # the next one goes to a file of its own, perhaps where the disk is good
            )
            raise
        head.used_bytes += len(packed)
        head.file_bytes = head.used_bytes

    def _rewrite(self, tombstones: Sequence[TombstoneRecord], oldest: int) -> None:
        """With those of all files that can be read."""
        known = list(tombstones)
        read = []
        for bucket in self._files:
            try:
                known += self._read(bucket)
            except OSError as error:
                log.warning("ssd delete log unreadable name=%s why=%s", bucket.name, error)
            else:
                read.append(bucket)
        self._begin(merged(known, oldest), read)

    def _begin(self, tombstones: Sequence[TombstoneRecord], replaced: Sequence[Bucket]) -> None:
        """A new file with these, in the place of others once it is on disk."""
        number, self._next_id = self._next_id, self._next_id + 1
        secret = self._random_bits(64)
        name = f"deletes-{number:08x}-{secret:016x}.log"
        bucket = Bucket(number, secret, self._directory.create(name), name, 0)
        self._files.append(bucket)  # counted and tidied up even if it comes to nothing
        self._head = None
        left = iter(tombstones)
        while part := list(islice(left, _PER_CHUNK)):
            packed = _chunk(part, bucket.used_bytes, secret)
            write_all(bucket.file, [packed], bucket.used_bytes)
            bucket.used_bytes = bucket.file_bytes = bucket.used_bytes + len(packed)
        bucket.file.sync()
        self._directory.sync()
        self._head, self._needed_bytes = bucket, bucket.used_bytes
        for old in replaced:
            self._remove(old)

    def _remove(self, bucket: Bucket) -> None:
        try:
            self._directory.unlink(bucket.name)
        except OSError as error:
            log.warning("ssd delete log left behind name=%s why=%s", bucket.name, error)
            return
        self._files.remove(bucket)
        bucket.file.close()

    def _read(self, bucket: Bucket) -> list[TombstoneRecord]:
        """All that is whole, page by page where something is not. Raises OSError."""
        size = _pages(bucket.file.size())
        data = aligned_buffer(size)[:size]
        read_into(bucket.file, 0, data, is_direct=self._directory.is_direct)
        return [tombstone for part in _chunks(data, bucket.secret) for tombstone in part]


def _pages(num_bytes: int) -> int:
    return num_bytes // ALIGN * ALIGN


def _chunk(tombstones: Sequence[TombstoneRecord], offset: int, secret: int) -> memoryview:
    body = pack_tombstones(tombstones)
    header = _HEADER.pack(0, _MAGIC, _FORMAT, 0, 0, offset, len(body))
    packed = (header + body)[8:]
    checksum = xxhash.xxh3_64_intdigest(packed, secret)
    num_bytes = round_up(_HEADER.size + len(body))
    buffer = aligned_buffer(num_bytes)[:num_bytes]
    buffer[: 8 + len(packed)] = checksum.to_bytes(8, "little") + packed
    return buffer


def _chunks(data: memoryview, secret: int) -> Iterator[list[TombstoneRecord]]:
    offset = 0
    while offset < len(data):
        checksum, magic, form, _, _, own_offset, num_bytes = _HEADER.unpack_from(data, offset)
        end = offset + _HEADER.size + num_bytes
        is_ours = (magic, form, own_offset) == (_MAGIC, _FORMAT, offset) and end <= len(data)
        if is_ours and xxhash.xxh3_64_intdigest(data[offset + 8 : end], secret) == checksum:
            yield unpack_tombstones(bytes(data[offset + _HEADER.size : end]))
            offset = round_up(end)
        else:
            offset += ALIGN
