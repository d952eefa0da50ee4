"""From the listings of all buckets to the index, without a Python step per block.

Of the records of one name that with the highest sequence counts, unless a tombstone holds it off. So the order in
which buckets and tombstones come does not matter, nor how often one comes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from daemons.store.ssd.buckets import Bucket
from daemons.store.ssd.index import BlockIndex
from daemons.store.ssd.kind import Kind
from daemons.store.ssd.listing import ROW, Listing, ObjectName, Rows, block_room
from daemons.store.ssd.record import RecordKind, TombstoneRecord

_U64 = NDArray[np.uint64]


@dataclass(slots=True)
class IndexLoader:
    """Holds about 90 bytes a block until `finish`."""

    random_bits: Callable[[int], int]
    next_sequence: int = 1
    tombstones: list[TombstoneRecord] = field(default_factory=list)
    _rows: list[Rows] = field(default_factory=list)
    _buckets: list[NDArray[np.uint32]] = field(default_factory=list)
    _kind_ids: dict[Kind, int] = field(default_factory=dict)
    _names: dict[int, ObjectName] = field(default_factory=dict)
    _num_rows: int = 0

    def add(self, bucket_id: int, listing: Listing) -> None:
        self.next_sequence = max(self.next_sequence, listing.next_sequence)
        self.add_tombstones(listing.tombstones)
        if not len(listing):
            return
        rows = listing.rows.copy()
        ids = [self._kind_ids.setdefault(kind, len(self._kind_ids)) for kind in listing.kinds]
        rows["kind"] = np.array(ids, np.uint32)[rows["kind"]]
        self._names.update((self._num_rows + row, named) for row, named in listing.names.items())
        self._num_rows += len(rows)
        self._rows.append(rows)
        self._buckets.append(np.full(len(rows), bucket_id, np.uint32))

    def add_tombstones(self, tombstones: Sequence[TombstoneRecord]) -> None:
        """The next sequence is above them even where all buckets of their time are gone."""
        self.tombstones += tombstones
        last = max((tombstone.until for tombstone in tombstones), default=0)
        self.next_sequence = max(self.next_sequence, last + 1)

    def finish(self, buckets: Iterable[Bucket]) -> BlockIndex:
        """All that lives, counted in its bucket."""
        rows = np.concatenate([np.empty(0, ROW), *self._rows])
        bucket_ids = np.concatenate([np.empty(0, np.uint32), *self._buckets])
        kinds = list(self._kind_ids)
        is_live = _newest(rows, self.tombstones) & _uncleared(rows, kinds, self.tombstones)
        rows, bucket_ids = rows[is_live], bucket_ids[is_live]
        row_of = np.cumsum(is_live) - 1
        names = {int(row_of[row]): named for row, named in self._names.items() if is_live[row]}
        index = BlockIndex(self.random_bits)
        index.load(rows, bucket_ids, kinds, names)
        rooms = _rooms(rows, kinds)
        for row in names:
            rooms[row] = index.room_bytes(row)
        _count(rooms, bucket_ids, {bucket.bucket_id: bucket for bucket in buckets})
        return index


def _newest(rows: Rows, tombstones: Sequence[TombstoneRecord]) -> NDArray[np.bool_]:
    """By one sort of all that happened to each name: it is there if the last of it is a put."""
    keys = [key for tombstone in tombstones for key in tombstone.keys]
    untils = [tombstone.until for tombstone in tombstones for _ in tombstone.keys]
    names: _U64 = np.concatenate(
        [rows["hash"], np.frombuffer(b"".join(keys), "<u8").reshape(-1, 2)]
    )
    # A tombstone comes before the put of the sequence that it spares.
    when: _U64 = np.concatenate(
        [rows["sequence"] * np.uint64(2) + np.uint64(1), np.array(untils, np.uint64) * np.uint64(2)]
    )
    order = np.lexsort((when, names[:, 1], names[:, 0]))
    ordered = names[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (ordered[1:] != ordered[:-1]).any(axis=1)
    last = order[is_last]
    is_newest = np.zeros(len(rows), np.bool_)
    is_newest[last[last < len(rows)]] = True
    return is_newest


def _uncleared(
    rows: Rows, kinds: Sequence[Kind], tombstones: Iterable[TombstoneRecord]
) -> NDArray[np.bool_]:
    everything = 0
    by_namespace: dict[bytes, int] = {}
    for tombstone in tombstones:
        if tombstone.kind is RecordKind.CLEAR_ALL:
            everything = max(everything, tombstone.until)
        elif tombstone.kind is RecordKind.CLEAR:
            until = by_namespace.get(tombstone.namespace, 0)
            by_namespace[tombstone.namespace] = max(until, tombstone.until)
    spared = [max(everything, by_namespace.get(kind.namespace, 0)) for kind in kinds]
    is_uncleared: NDArray[np.bool_] = rows["sequence"] >= np.array(spared, np.uint64)[rows["kind"]]
    return is_uncleared


def _rooms(rows: Rows, kinds: Sequence[Kind]) -> _U64:
    """Of blocks without a name. Few shapes are many blocks'."""
    names = [
        len(kind.namespace) + len(kind.model.encode()) + len(kind.tenant.encode()) for kind in kinds
    ]
    shapes: _U64 = rows["length"].astype(np.uint64)
    shapes |= rows["layers"].astype(np.uint64) << np.uint64(32)
    shapes |= np.array(names, np.uint64)[rows["kind"]] << np.uint64(48)
    distinct, shape_of = np.unique(shapes, return_inverse=True)
    rooms = [
        block_room(shape & 0xFFFFFFFF, (shape >> 32) & 0xFFFF, shape >> 48)
        for shape in map(int, distinct)
    ]
    return np.array(rooms, np.uint64)[shape_of]


def _count(rooms: _U64, bucket_ids: NDArray[np.uint32], by_id: dict[int, Bucket]) -> None:
    ids, bucket_of = np.unique(bucket_ids, return_inverse=True)
    num_live = np.bincount(bucket_of, minlength=len(ids))
    live_bytes = np.zeros(len(ids), np.uint64)
    np.add.at(live_bytes, bucket_of, rooms)
    for number, bucket_id in enumerate(map(int, ids)):
        by_id[bucket_id].num_live = int(num_live[number])
        by_id[bucket_id].live_bytes = int(live_bytes[number])
