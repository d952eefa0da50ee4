"""The index and the buckets together: which records live, counted per bucket. Guarded by the tier's lock."""

from collections.abc import Iterable
from dataclasses import dataclass

from daemons.core.ids import BlockHash
from daemons.store.directory.columns import NO_ROW
from daemons.store.lower import BlockRecord
from daemons.store.ssd.buckets import BucketSet
from daemons.store.ssd.index import BlockIndex, Location
from daemons.store.ssd.listing import room_bytes
from daemons.store.ssd.record import record_bytes


@dataclass(slots=True)
class BlockMap:
    """Every block is in one bucket; what a bucket counts as live is what the index points to."""

    buckets: BucketSet
    index: BlockIndex

    def get(self, block_hash: BlockHash) -> tuple[BlockRecord, Location] | None:
        row = self.index.find(block_hash)
        if row == NO_ROW:
            return None
        return self.index.block(row), self.index.location(row)

    def put(self, block: BlockRecord, location: Location) -> None:
        """The record is on disk; it takes the place of an earlier one of that name."""
        self.drop([block.meta.hash])
        self.index.add(block, location)
        self._count(location.bucket, block, 1)

    def move(self, block_hash: BlockHash, source: Location, target: Location) -> bool:
        """To its copy, unless it went or was replaced in the meantime. Its uses begin again."""
        row = self.index.find(block_hash)
        if row == NO_ROW or self.index.location(row) != source:
            return False
        block = self.index.block(row)
        self._count(source.bucket, block, -1)
        self._count(target.bucket, block, 1)
        self.index.move(row, target)
        self.index.forget_uses(row)
        return True

    def drop(self, hashes: Iterable[BlockHash]) -> list[BlockHash]:
        """Those that were there."""
        return [block_hash for block_hash in hashes if self._drop(block_hash)]

    def drop_namespace(self, namespace: bytes | None, until: int) -> list[BlockHash]:
        return self._drop_rows(self.index.rows_in_namespace(namespace, until))

    def drop_bucket(self, bucket_id: int) -> list[BlockHash]:
        return self._drop_rows(self.index.rows_in_bucket(bucket_id))

    def check_invariants(self) -> None:
        """For tests. O(n)."""
        self.index.check_invariants()
        live: dict[int, list[int]] = {bucket_id: [] for bucket_id in self.buckets.by_id}
        for row in self.index.rows():
            location, block = self.index.location(row), self.index.block(row)
            live[location.bucket].append(room_bytes(block))
            assert (
                location.offset + record_bytes(block)
                <= self.buckets.by_id[location.bucket].used_bytes
            )
        for bucket_id, bucket in self.buckets.by_id.items():
            assert (bucket.num_live, bucket.live_bytes) == (
                len(live[bucket_id]),
                sum(live[bucket_id]),
            )
            assert bucket.used_bytes <= bucket.file_bytes
        assert list(self.buckets.by_id) == sorted(self.buckets.by_id)

    def _drop(self, block_hash: BlockHash) -> bool:
        row = self.index.find(block_hash)
        if row == NO_ROW:
            return False
        self._drop_rows([row])
        return True

    def _drop_rows(self, rows: list[int]) -> list[BlockHash]:
        dropped = []
        for row in rows:
            dropped.append(self.index.hash_of(row))
            self._count(self.index.location(row).bucket, self.index.block(row), -1)
            self.index.remove(row)
        return dropped

    def _count(self, bucket_id: int, block: BlockRecord, sign: int) -> None:
        bucket = self.buckets.by_id[bucket_id]
        bucket.num_live += sign
        bucket.live_bytes += sign * room_bytes(block)
