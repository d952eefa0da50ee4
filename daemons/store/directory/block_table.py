"""The directory's columns of blocks: one row each, found by hash. Per block two small objects live (key and row
number); everything else is in arrays, for a million blocks must neither cost gigabytes nor slow the collector.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from daemons.core.ids import BlockHash
from daemons.protocol.block import BlockMeta
from daemons.protocol.packed import HASH_TYPE, BlockKind, NamedValue, SealedBlocks
from daemons.store.directory.columns import NO_ROW, Column, RowPool, Rows


class Named(NamedTuple):
    """What only objects have."""

    namespace: bytes
    name: bytes
    value_bytes: int


class BlockTable:
    """Rows are reused. In a free one `kind` and `head` are NO_ROW, `wanted` and `hot` are 0, as in one that never was
    used; `head` is the first replica's row, or NO_ROW.
    """

    def __init__(self) -> None:
        self.row_by_hash: dict[BlockHash, int] = {}
        self.hashes = Column[np.void](HASH_TYPE)
        self.parents = Column[np.void](HASH_TYPE)
        self.depth = Column[np.uint32](np.uint32)
        self.num_tokens = Column[np.uint32](np.uint32)
        self.kind = Column[np.int32](np.int32, NO_ROW)
        self.created_s = Column[np.float64](np.float64)
        self.head = Column[np.int32](np.int32, NO_ROW)
        self.wanted = Column[np.uint8](np.uint8)
        """Replicas it should have; 0: as many as the pool wants."""
        self.hot = Column[np.uint8](np.uint8)
        """Replicas it should have at least, for as long as it is hot; 0: it is not."""
        self.uses = Column[np.uint32](np.uint32)
        """Requests that read it, of late: see RowCounts."""
        self.num_hot = 0
        self.num_wanted = 0
        """Blocks with a number of their own."""
        self.kinds: list[BlockKind | None] = []
        self.num_by_kind: list[int] = []
        self.names: dict[int, Named] = {}
        """By row."""
        self.rows_by_name: dict[bytes, dict[bytes, int]] = {}
        """By namespace and name, for look-ups that need not hash."""
        self._kind_ids: dict[BlockKind, int] = {}
        self._named_kinds: set[int] = set()
        """Of which some block is or was an object."""
        self._pool = RowPool()

    def __len__(self) -> int:
        return len(self.row_by_hash)

    def find_all(self, hashes: Sequence[BlockHash]) -> Rows:
        """NO_ROW for those that are not there."""
        rows = map(self.row_by_hash.get, hashes, repeat(NO_ROW))
        return np.fromiter(rows, np.intp, len(hashes))

    def take_all(self, hashes: Sequence[BlockHash]) -> Rows:
        """As `find_all`, and they are found no more: what is to stay is `put_back`, the rest goes by `remove_all`. Of
        one that is named twice the second is not there.
        """
        rows = map(self.row_by_hash.pop, hashes, repeat(NO_ROW))
        return np.fromiter(rows, np.intp, len(hashes))

    def put_back(self, hashes: Sequence[BlockHash], rows: Rows) -> None:
        """Found again in the rows that `take_all` gave."""
        self.row_by_hash.update(zip(hashes, rows.tolist(), strict=True))

    def add_all(
        self, sealed: SealedBlocks, hashes: Sequence[BlockHash], created_s: NDArray[np.float64]
    ) -> Rows | None:
        """Their rows; `hashes` are theirs. They have no replica yet. None, and nothing is changed, where one of them is
        there already, or named twice.

        One look at the dict for each: of a million keys that is what a block costs most for.
        """
        numbers = self._pool.next(len(hashes)).tolist()
        held = list(map(self.row_by_hash.setdefault, hashes, numbers))
        if held != numbers:
            for block_hash, row, number in zip(hashes, held, numbers, strict=True):
                if row == number:
                    del self.row_by_hash[block_hash]
            return None
        rows = self._pool.take(len(hashes))
        for column in (self.hashes, self.parents, self.depth, self.num_tokens):
            column.reach(self._pool.num_used)
        for other in (self.kind, self.created_s, self.head, self.wanted, self.hot, self.uses):
            other.reach(self._pool.num_used)
        columns = sealed.columns()
        location = columns["location"]
        self.hashes.values[rows] = location["hash"]
        self.parents.values[rows] = columns["parent"]
        self.depth.values[rows] = columns["depth"]
        self.num_tokens.values[rows] = columns["num_tokens"]
        self.kind.values[rows] = self._count_kinds(sealed, location["common"])
        self.created_s.values[rows] = created_s
        self.uses.values[rows] = 0
        for index, named in sealed.named.items():
            self.name(int(rows[index]), named)
        return rows

    def name(self, row: int, named: NamedValue) -> None:
        """Of a new object, or of one in a new version."""
        kind_id = self.kind.values.item(row)
        kind = self.kinds[kind_id]
        assert kind is not None, "a row in use has a kind"
        self._named_kinds.add(kind_id)
        self.names[row] = Named(kind.namespace, named.name, named.value_bytes)
        self.rows_by_name.setdefault(kind.namespace, {})[named.name] = row

    def remove_all(self, rows: Rows) -> None:
        """Blocks that were taken out by `take_all` and have no replica any more."""
        counts = np.bincount(self.kind.values[rows])
        kind_ids = np.flatnonzero(counts).tolist()
        if not self._named_kinds.isdisjoint(kind_ids):
            for row in self.names.keys() & set(rows.tolist()):
                self._unname(row)
        if self.num_wanted:
            self.num_wanted -= int(np.count_nonzero(self.wanted.values[rows]))
            self.wanted.values[rows] = 0
        if self.num_hot:
            self.num_hot -= int(np.count_nonzero(self.hot.values[rows]))
            self.hot.values[rows] = 0
        for kind_id in kind_ids:
            self.num_by_kind[kind_id] -= int(counts[kind_id])
            if not self.num_by_kind[kind_id]:
                self._forget_kind(kind_id)
        self.kind.values[rows] = NO_ROW
        self._pool.give(rows)

    def want(self, row: int, count: int) -> None:
        """So many replicas; 0 for as many as the pool wants."""
        self.num_wanted += (count > 0) - int(self.wanted.values[row] > 0)
        self.wanted.values[row] = count

    def want_all(self, rows: Rows, counts: NDArray[np.uint32]) -> None:
        """Of blocks that have no number of their own."""
        if np.count_nonzero(counts):
            self.num_wanted += int(np.count_nonzero(counts))
            self.wanted.values[rows] = counts

    def namespace_of(self, block_hash: BlockHash) -> bytes | None:
        """None for a block that is not here."""
        row = self.row_by_hash.get(block_hash, NO_ROW)
        kind = self.kinds[self.kind.values.item(row)] if row != NO_ROW else None
        return None if kind is None else kind.namespace

    def heat(self, row: int, count: int) -> None:
        """At least so many replicas while it is hot; 0: it is no longer."""
        self.num_hot += (count > 0) - int(self.hot.values[row] > 0)
        self.hot.values[row] = count

    def hash_of(self, row: int) -> BlockHash:
        return BlockHash(self.hashes.bytes_of(row))

    def hashes_of(self, rows: NDArray[np.integer[Any]]) -> list[BlockHash]:
        """Of many rows at once, for a call of `hash_of` costs as much as the hash."""
        return cast(list[BlockHash], self.hashes.values[rows].tolist())

    def parent_of(self, row: int) -> BlockHash:
        return BlockHash(self.parents.bytes_of(row))

    def starts(self, rows: Rows) -> Rows:
        """Those of these rows whose parent is not the row before them."""
        if len(rows) < 2:
            return rows
        parents = self.parents.values[rows[1:]].view(np.uint64).reshape(-1, 2)
        before = self.hashes.values[rows[:-1]].view(np.uint64).reshape(-1, 2)
        is_next = (parents[:, 0] == before[:, 0]) & (parents[:, 1] == before[:, 1])
        return np.compress(np.concatenate([[True], ~is_next]), rows)

    def meta_of(self, row: int) -> BlockMeta:
        kind = self.kinds[self.kind.values[row]]
        assert kind is not None, "a row in use has a kind"
        named = self.names.get(row)
        return BlockMeta(
            hash=self.hash_of(row),
            parent=self.parent_of(row),
            namespace=kind.namespace,
            depth=self.depth.values.item(row),
            num_tokens=self.num_tokens.values.item(row),
            model=kind.model,
            tenant=kind.tenant,
            name=named.name if named else b"",
            value_bytes=named.value_bytes if named else 0,
        )

    def key_columns(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Hashes as (first, last) 8 bytes, big-endian, so that numbers sort as the bytes do; copies."""
        pairs = self.hashes.values.view(">u8").reshape(-1, 2)
        return pairs[:, 0].astype(np.uint64), pairs[:, 1].astype(np.uint64)

    def _unname(self, row: int) -> None:
        named = self.names.pop(row)
        of_namespace = self.rows_by_name[named.namespace]
        del of_namespace[named.name]
        if not of_namespace:
            del self.rows_by_name[named.namespace]

    def _count_kinds(
        self, sealed: SealedBlocks, common: NDArray[np.uint32]
    ) -> NDArray[np.int32] | int:
        """The kind of each, or of all, counted; none is kept that no block is of."""
        if len(sealed.kinds) == 1 and len(common):  # as mostly, and `common` was looked at before
            return self._count_kind(sealed.kinds[0], len(common))
        counts = np.bincount(common, minlength=len(sealed.kinds)).tolist()
        ids = np.full(len(sealed.kinds), NO_ROW, np.int32)
        for number, (kind, count) in enumerate(zip(sealed.kinds, counts, strict=True)):
            if count:
                ids[number] = self._count_kind(kind, count)
        return ids.take(common)

    def _count_kind(self, kind: BlockKind, count: int) -> int:
        """So many more are of this kind; its id."""
        kind_id = self._kind_ids.get(kind)
        if kind_id is None:
            kind_id = self._new_kind(kind)
        self.num_by_kind[kind_id] += count
        return kind_id

    def _new_kind(self, kind: BlockKind) -> int:
        """A free id, so that there are never more than kinds in use at one time."""
        kind_id = next((n for n, held in enumerate(self.kinds) if held is None), len(self.kinds))
        self.kinds[kind_id : kind_id + 1] = [kind]
        self.num_by_kind[kind_id : kind_id + 1] = [0]
        self._kind_ids[kind] = kind_id
        return kind_id

    def _forget_kind(self, kind_id: int) -> None:
        named = self.kinds[kind_id]
        assert named is not None, "a kind in use is known"
        del self._kind_ids[named]
        self._named_kinds.discard(kind_id)
        self.kinds[kind_id] = None
