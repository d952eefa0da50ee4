"""Which block lies where on the SSD: columns of about 100 bytes a block, found by an open hash table over them.

A dict of keys would cost as much again. Not thread safe: the tier's lock guards it.
"""

import secrets
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daemons.core.ids import BlockHash
from daemons.protocol.block import BlockMeta
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.store.directory.columns import NO_ROW
from daemons.store.lower import BlockRecord
from daemons.store.ssd.files import ALIGN
from daemons.store.ssd.kind import Kind, Kinds
from daemons.store.ssd.listing import ObjectName, Rows, room_bytes

_MIN_SLOTS = 1024
_MAX_USES = 255
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Location:
    """Where a block's record is; two with the same sequence are the same bytes."""

    bucket: int
    offset: int
    sequence: int


class BlockIndex:
    """Rows are reused; a free one has bucket 0. Linear probing with a random multiplier, so that nobody who can
    choose names can choose where they collide.
    """

    def __init__(self, random_bits: Callable[[int], int] = secrets.randbits) -> None:
        self._hashes = bytearray()
        self._parents = bytearray()
        self._bucket = array("I")
        self._page = array("I")
        self._sequence = array("Q")
        self._length = array("I")
        self._layers = array("H")
        self._version = array("Q")
        self._seal = array("Q")
        self._depth = array("I")
        self._tokens = array("I")
        self._kind = array("I")
        self._uses = array("B")
        self._created_s = array("d")
        self._columns = (
            self._bucket,
            self._page,
            self._sequence,
            self._length,
            self._layers,
            self._version,
            self._seal,
            self._depth,
            self._tokens,
            self._kind,
            self._uses,
            self._created_s,
        )
        self._kinds = Kinds()
        self._names: dict[int, ObjectName] = {}
        """Of objects, by row."""
        self._free = array("I")
        self._num_rows = 0
        self._multiplier = random_bits(64) | 1
        self._shift = 64 - (_MIN_SLOTS.bit_length() - 1)
        self._slots = array("I", bytes(4 * _MIN_SLOTS))
        """Row + 1, or 0."""

    def __len__(self) -> int:
        return self._num_rows

    def find(self, block_hash: BlockHash) -> int:
        """NO_ROW when it is not there."""
        slots, mask = self._slots, len(self._slots) - 1
        slot = self._home(block_hash)
        wanted: bytes = block_hash
        while row := slots[slot]:
            at = (row - 1) * HASH_BYTES
            if self._hashes[at : at + HASH_BYTES] == wanted:
                return row - 1
            slot = (slot + 1) & mask
        return NO_ROW

    def add(self, block: BlockRecord, location: Location) -> int:
        """A block that is not there yet; its row."""
        if 2 * (self._num_rows + 1) > len(self._slots):
            self._rebuild(2 * len(self._slots))
        row = self._free.pop() if self._free else self._grow()
        meta, at = block.meta, row * HASH_BYTES
        self._hashes[at : at + HASH_BYTES] = meta.hash
        self._parents[at : at + HASH_BYTES] = meta.parent
        self._depth[row] = meta.depth
        self._tokens[row] = meta.num_tokens
        self._kind[row] = self._kinds.acquire(Kind(meta.namespace, meta.model, meta.tenant))
        self._length[row] = block.length
        self._layers[row] = block.num_layers
        self._version[row] = block.version
        self._seal[row] = block.seal_checksum
        self._created_s[row] = block.created_s
        self._uses[row] = 0
        if meta.name:
            self._names[row] = meta.name, meta.value_bytes
        self.move(row, location)
        self._insert(row)
        self._num_rows += 1
        return row

    def load(
        self,
        rows: Rows,
        bucket_ids: NDArray[np.uint32],
        kinds: Sequence[Kind],
        names: Mapping[int, ObjectName],
    ) -> None:
        """Into an empty one, many blocks, each once; `kind` of `rows` is a place in `kinds`, `names` by row."""
        assert not self._bucket, "there are rows already"
        self._hashes += rows["hash"].tobytes()
        self._parents += rows["parent"].tobytes()
        self._bucket.frombytes(bucket_ids.tobytes())
        for column, name in (
            (self._page, "page"),
            (self._sequence, "sequence"),
            (self._length, "length"),
            (self._layers, "layers"),
            (self._version, "version"),
            (self._seal, "seal"),
            (self._depth, "depth"),
            (self._tokens, "tokens"),
            (self._created_s, "created_s"),
        ):
            column.frombytes(rows[name].tobytes())
        kind_ids = self._kinds.load(kinds, np.bincount(rows["kind"], minlength=len(kinds)))
        self._kind.frombytes(kind_ids[rows["kind"]].tobytes())
        self._uses.frombytes(bytes(len(rows)))
        self._names.update(names)
        self._num_rows = len(rows)
        self._rebuild(max(_MIN_SLOTS, 1 << (2 * len(rows) + 1).bit_length()))

    def move(self, row: int, location: Location) -> None:
        self._bucket[row] = location.bucket
        self._page[row] = location.offset // ALIGN
        self._sequence[row] = location.sequence

    def remove(self, row: int) -> None:
        self._close_gap(self._slot_of(row))
        self._kinds.release(self._kind[row])
        self._bucket[row] = 0
        self._names.pop(row, None)
        self._free.append(row)
        self._num_rows -= 1

    def use(self, row: int) -> None:
        """It was read: a reason to keep it when its bucket goes."""
        if self._uses[row] < _MAX_USES:
            self._uses[row] += 1

    def forget_uses(self, row: int) -> None:
        self._uses[row] = 0

    def location(self, row: int) -> Location:
        return Location(self._bucket[row], self._page[row] * ALIGN, self._sequence[row])

    def hash_of(self, row: int) -> BlockHash:
        return BlockHash(bytes(self._hashes[row * HASH_BYTES : (row + 1) * HASH_BYTES]))

    def block(self, row: int) -> BlockRecord:
        kind = self._kinds.get(self._kind[row])
        name, value_bytes = self._names.get(row, (b"", 0))
        meta = BlockMeta(
            hash=self.hash_of(row),
            parent=BlockHash(bytes(self._parents[row * HASH_BYTES : (row + 1) * HASH_BYTES])),
            namespace=kind.namespace,
            depth=self._depth[row],
            num_tokens=self._tokens[row],
            model=kind.model,
            tenant=kind.tenant,
            name=name,
            value_bytes=value_bytes,
        )
        return BlockRecord(
            meta,
            self._length[row],
            self._layers[row],
            self._version[row],
            self._seal[row],
            self._created_s[row],
        )

    def room_bytes(self, row: int) -> int:
        """That it needs of another bucket."""
        return room_bytes(self.block(row))

    def rows(self) -> Iterator[int]:
        return (row for row, bucket in enumerate(self._bucket) if bucket)

    def rows_in_bucket(self, bucket: int) -> list[int]:
        """In the order they lie there. O(all rows), vectorized."""
        found = np.flatnonzero(np.frombuffer(self._bucket, np.uint32) == bucket)
        pages = np.frombuffer(self._page, np.uint32)[found]
        return [int(row) for row in found[np.argsort(pages)]]

    def rows_in_namespace(self, namespace: bytes | None, until: int) -> list[int]:
        """Those with a sequence below `until`; None: of every namespace."""
        buckets = np.frombuffer(self._bucket, np.uint32)
        chosen = (buckets != 0) & (np.frombuffer(self._sequence, np.uint64) < until)
        if namespace is not None:
            kinds = self._kinds.in_namespace(namespace)
            chosen &= np.isin(np.frombuffer(self._kind, np.uint32), kinds)
        return [int(row) for row in np.flatnonzero(chosen)]

    def uses(self, row: int) -> int:
        return self._uses[row]

    def num_bytes(self) -> int:
        """Of memory, for the measure of it."""
        arrays = (*self._columns, self._slots, self._free)
        held = sum(len(column) * column.itemsize for column in arrays)
        return held + len(self._hashes) + len(self._parents)

    def check_invariants(self) -> None:
        """For tests: every row is found, every slot leads to a row. O(n)."""
        rows = list(self.rows())
        assert len(rows) == self._num_rows
        assert all(self.find(self.hash_of(row)) == row for row in rows)
        assert sorted(slot - 1 for slot in self._slots if slot) == rows
        assert not set(self._free) & set(rows)
        assert set(self._names) <= set(rows)
        assert len(self._free) + len(rows) <= len(self._bucket)
        self._kinds.check_invariants([self._kind[row] for row in rows])

    def _home(self, block_hash: bytes | bytearray) -> int:
        word = int.from_bytes(block_hash[:8], "little")
        return ((word * self._multiplier) & _WORD) >> self._shift

    def _home_of(self, row: int) -> int:
        return self._home(self._hashes[row * HASH_BYTES : row * HASH_BYTES + 8])

    def _insert(self, row: int) -> None:
        slots, mask = self._slots, len(self._slots) - 1
        slot = self._home_of(row)
        while slots[slot]:
            slot = (slot + 1) & mask
        slots[slot] = row + 1

    def _slot_of(self, row: int) -> int:
        slots, mask = self._slots, len(self._slots) - 1
        slot = self._home_of(row)
        while slots[slot] != row + 1:
            assert slots[slot], f"row {row} is not in the table"
            slot = (slot + 1) & mask
        return slot

    def _close_gap(self, gap: int) -> None:
        """Move back what probed over the freed slot (Knuth, vol. 3, 6.4, algorithm R)."""
        slots, mask = self._slots, len(self._slots) - 1
        slot = gap
        while True:
            slots[gap] = 0
            while True:
                slot = (slot + 1) & mask
                if not slots[slot]:
                    return
                home = self._home_of(slots[slot] - 1)
                if (slot - home) & mask >= (slot - gap) & mask:
                    break
            slots[gap] = slots[slot]
            gap = slot

    def _grow(self) -> int:
        """A new row; columns grow by an eighth at once, for one call per column and block costs more than all else."""
        first = len(self._bucket)
        more = max(256, first // 8)
        self._hashes += bytes(more * HASH_BYTES)
        self._parents += bytes(more * HASH_BYTES)
        for column in self._columns:
            column.frombytes(bytes(more * column.itemsize))
        self._free.extend(range(first + more - 1, first, -1))
        return first

    def _rebuild(self, num_slots: int) -> None:
        """A larger table, filled without a Python step per block: in order of their homes, each sits at its home or
        right behind the one before it. The few that would lie past the end probe from the start.
        """
        self._shift = 64 - (num_slots.bit_length() - 1)
        rows = np.flatnonzero(np.frombuffer(self._bucket, np.uint32))
        words = np.frombuffer(bytes(self._hashes), "<u8").reshape(-1, 2)[rows, 0]
        homes = (words * np.uint64(self._multiplier)) >> np.uint64(self._shift)
        order = np.argsort(homes, kind="stable")
        steps = np.arange(len(rows), dtype=np.int64)
        at = np.maximum.accumulate(homes[order].astype(np.int64) - steps) + steps
        fits = at < num_slots
        table: NDArray[np.uint32] = np.zeros(num_slots, np.uint32)
        table[at[fits]] = rows[order][fits].astype(np.uint32) + 1
        self._slots = array("I", table.tobytes())
        for row in rows[order][~fits]:
            self._insert(int(row))
