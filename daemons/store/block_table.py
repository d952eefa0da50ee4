"""The directory's columns of blocks: one row each, found by hash. Per block two small objects live (key and row
number); everything else is in arrays, for a million blocks must neither cost gigabytes nor slow the collector.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from daemons.core.ids import BlockHash
from daemons.protocol.block import BlockMeta
from daemons.protocol.prefix_hash import HASH_BYTES

NO_ROW = -1
GROW_ROWS = 1024
"""Columns grow by so many at once: one call per column and block costs more than all else."""


def take_rows(count: int, free: "array[int]", num_used: int) -> list[int]:
    """So many rows for new entries: those that are free, which are taken out, then the ones above all in use."""
    reused = min(count, len(free))
    rows = free[len(free) - reused :].tolist()
    del free[len(free) - reused :]
    return rows + list(range(num_used, num_used + count - reused))


class Kind(NamedTuple):
    """What many blocks have in common, kept once."""

    namespace: bytes
    model: str
    tenant: str


class Named(NamedTuple):
    """What only objects have."""

    namespace: bytes
    name: bytes
    value_bytes: int


class BlockTable:
    """Rows are reused. `kind` is NO_ROW in a free row; `head` is the first replica's row, or NO_ROW."""

    def __init__(self) -> None:
        self.row_by_hash: dict[BlockHash, int] = {}
        self.hashes = bytearray()
        self.parents = bytearray()
        self.depth = array("I")
        self.num_tokens = array("I")
        self.kind = array("i")
        self.created_s = array("d")
        self.head = array("i")
        self.wanted = array("B")
        """Replicas it should have; 0: as many as the pool wants."""
        self.hot = array("B")
        """Replicas it should have at least, for as long as it is hot; 0: it is not."""
        self.num_hot = 0
        self.num_wanted = 0
        """Blocks with a number of their own."""
        self.kinds: list[Kind | None] = []
        self.num_by_kind = array("q")
        self.names: dict[int, Named] = {}
        """By row."""
        self.rows_by_name: dict[bytes, dict[bytes, int]] = {}
        """By namespace and name, for look-ups that need not hash."""
        self._kind_ids: dict[Kind, int] = {}
        self._num_used = 0
        """Rows that were ever in use; those above are blank."""
        self._free = array("i")

    def __len__(self) -> int:
        return len(self.row_by_hash)

    def add_all(self, metas: Sequence[BlockMeta], created_s: Sequence[float]) -> list[int]:
        """Rows of blocks that are not there yet, each once. Flat: a master adds hundreds of thousands a second."""
        rows = take_rows(len(metas), self._free, self._num_used)
        self._num_used = max(self._num_used, max(rows, default=-1) + 1)
        while self._num_used > len(self.kind):
            self._grow()
        hashes, parents, row_by_hash = self.hashes, self.parents, self.row_by_hash
        depth, num_tokens, born_s = self.depth, self.num_tokens, self.created_s
        kind, kind_ids, num_by_kind = self.kind, self._kind_ids, self.num_by_kind
        head, wanted, hot = self.head, self.wanted, self.hot
        for row, meta, at_s in zip(rows, metas, created_s, strict=True):
            kind_id = kind_ids.get((meta.namespace, meta.model, meta.tenant))  # type: ignore[call-overload]  # a Kind is such a tuple
            if kind_id is None:
                kind_id = self._new_kind(Kind(meta.namespace, meta.model, meta.tenant))
            num_by_kind[kind_id] += 1
            kind[row] = kind_id
            at = row * HASH_BYTES
            hashes[at : at + HASH_BYTES] = meta.hash
            parents[at : at + HASH_BYTES] = meta.parent
            depth[row] = meta.depth
            num_tokens[row] = meta.num_tokens
            born_s[row] = at_s
            head[row] = NO_ROW
            wanted[row] = hot[row] = 0
            row_by_hash[meta.hash] = row
            if meta.name:
                self.name(row, meta)
        return rows

    def name(self, row: int, meta: BlockMeta) -> None:
        """Of a new object, or of one in a new version."""
        self.names[row] = Named(meta.namespace, meta.name, meta.value_bytes)
        self.rows_by_name.setdefault(meta.namespace, {})[meta.name] = row

    def remove(self, row: int) -> None:
        self.remove_all([self.hash_of(row)])

    def remove_all(self, hashes: Iterable[BlockHash]) -> None:
        """Blocks that are there, each once."""
        row_by_hash, names, wanted = self.row_by_hash, self.names, self.wanted
        kind, num_by_kind = self.kind, self.num_by_kind
        rows = []
        for block_hash in hashes:
            row = row_by_hash.pop(block_hash)
            if names and row in names:
                self._unname(row)
            if wanted[row]:
                self.want(row, 0)
            if self.hot[row]:
                self.heat(row, 0)
            kind_id = kind[row]
            kind[row] = NO_ROW
            num_by_kind[kind_id] -= 1
            if not num_by_kind[kind_id]:
                self._forget_kind(kind_id)
            rows.append(row)
        self._free.extend(rows)

    def _forget_kind(self, kind_id: int) -> None:
        named = self.kinds[kind_id]
        assert named is not None, "a kind in use is known"
        del self._kind_ids[named]
        self.kinds[kind_id] = None

    def _unname(self, row: int) -> None:
        named = self.names.pop(row)
        of_namespace = self.rows_by_name[named.namespace]
        del of_namespace[named.name]
        if not of_namespace:
            del self.rows_by_name[named.namespace]

    def want(self, row: int, count: int) -> None:
        """So many replicas; 0 for as many as the pool wants."""
        self.num_wanted += (count > 0) - (self.wanted[row] > 0)
        self.wanted[row] = count

    def namespace_of(self, block_hash: BlockHash) -> bytes | None:
        """None for a block that is not here."""
        row = self.row_by_hash.get(block_hash, NO_ROW)
        kind = self.kinds[self.kind[row]] if row != NO_ROW else None
        return None if kind is None else kind.namespace

    def heat(self, row: int, count: int) -> None:
        """At least so many replicas while it is hot; 0: it is no longer."""
        self.num_hot += (count > 0) - (self.hot[row] > 0)
        self.hot[row] = count

    def hash_of(self, row: int) -> BlockHash:
        return BlockHash(bytes(self.hashes[row * HASH_BYTES : (row + 1) * HASH_BYTES]))

    def hashes_of(self, rows: Sequence[int]) -> list[BlockHash]:
        """Of many rows at once, for a call of `hash_of` costs as much as the hash."""
        hashes = self.hashes
        starts = [row * HASH_BYTES for row in rows]
        return cast(list[BlockHash], [bytes(hashes[at : at + HASH_BYTES]) for at in starts])

    def parent_of(self, row: int) -> BlockHash:
        return BlockHash(bytes(self.parents[row * HASH_BYTES : (row + 1) * HASH_BYTES]))

    def meta_of(self, row: int) -> BlockMeta:
        kind = self.kinds[self.kind[row]]
        assert kind is not None, "a row in use has a kind"
        named = self.names.get(row)
        return BlockMeta(
            hash=self.hash_of(row),
            parent=self.parent_of(row),
            namespace=kind.namespace,
            depth=self.depth[row],
            num_tokens=self.num_tokens[row],
            model=kind.model,
            tenant=kind.tenant,
            name=named.name if named else b"",
            value_bytes=named.value_bytes if named else 0,
        )

    def key_columns(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Hashes as (first, last) 8 bytes, big-endian, so that numbers sort as the bytes do; copies."""
        pairs = np.frombuffer(bytes(self.hashes), ">u8").reshape(-1, 2)
        return pairs[:, 0].astype(np.uint64), pairs[:, 1].astype(np.uint64)

    def _grow(self) -> None:
        self.hashes += bytes(GROW_ROWS * HASH_BYTES)
        self.parents += bytes(GROW_ROWS * HASH_BYTES)
        self.depth.extend([0] * GROW_ROWS)
        self.num_tokens.extend([0] * GROW_ROWS)
        self.kind.extend([NO_ROW] * GROW_ROWS)
        self.created_s.extend([0.0] * GROW_ROWS)
        self.head.extend([NO_ROW] * GROW_ROWS)
        self.wanted.extend([0] * GROW_ROWS)
        self.hot.extend([0] * GROW_ROWS)

    def _new_kind(self, kind: Kind) -> int:
        """A free id, so that there are never more than kinds in use at one time."""
        for kind_id, held in enumerate(self.kinds):
            if held is None:
                self.kinds[kind_id] = kind
                break
        else:
            kind_id = len(self.kinds)
            self.kinds.append(kind)
            self.num_by_kind.append(0)
        self._kind_ids[kind] = kind_id
        return kind_id
