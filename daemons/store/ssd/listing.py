"""What a bucket holds: rows of its blocks, and its tombstones. Kept beside the open bucket, written behind the records
of a closed one as its footer, so that the next start reads that in place of every header.

A footer is hashed under its bucket's secret and knows its place, as headers do. It ends the file, so one that was torn
or is missing is not found, and the records are scanned.
"""

import struct
from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from daemons.core.ids import BlockHash
from daemons.core.units import KIB
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.store.lower import BlockRecord
from daemons.store.ssd.aligned import aligned_buffer, read_into, round_up, write_all
from daemons.store.ssd.buckets import Bucket
from daemons.store.ssd.files import ALIGN
from daemons.store.ssd.kind import Kind
from daemons.store.ssd.record import Place, RecordKind, TombstoneRecord, record_bytes, shape_layout

ROW: Final = np.dtype(
    [
        ("hash", "<u8", (2,)),
        ("parent", "V16"),
        ("sequence", "<u8"),
        ("version", "<u8"),
        ("seal", "<u8"),
        ("created_s", "<f8"),
        ("page", "<u4"),
        ("length", "<u4"),
        ("depth", "<u4"),
        ("tokens", "<u4"),
        ("kind", "<u4"),
        ("layers", "<u2"),
    ]
)
"""`kind`: its number in the listing."""
Rows = NDArray[np.void]

_PACK: Final = struct.Struct("<16s16sQQQdIIIIIH")
assert _PACK.size == ROW.itemsize

_FORMAT: Final = 1
_MAGIC: Final = b"MCSF"
_END: Final = struct.Struct("<Q4sBBHQQQII")
"""checksum of all of it, magic, format, zero, zero · offset of the footer, end of the records, next sequence · rows,
bytes behind them"""
_TAIL_BYTES: Final = 64 * KIB
"""Read first: holds the whole footer where blocks are large."""
_BESIDE_BYTES: Final = 64
"""Of a kind or a tombstone in the footer beside its names and keys, and of the footer beside all of them; rather too
much than too little."""
FOOTER_BYTES: Final = _END.size + _BESIDE_BYTES
"""Of one without rows."""

ObjectName = tuple[bytes, int]
"""And bytes of the value, which only objects have."""
_Tombstones = list[tuple[int, int, bytes, bytes]]
_Packed = tuple[list[tuple[bytes, str, str]], _Tombstones, dict[int, ObjectName]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode
_decode_tombstones = msgspec.msgpack.Decoder(_Tombstones).decode


def room_bytes(record: BlockRecord | TombstoneRecord) -> int:
    """Of a bucket: the record itself, and at most what its footer needs for it."""
    if isinstance(record, BlockRecord):
        return block_room(record.length, record.num_layers, record.names_bytes)
    listed_bytes = len(record.keys) * HASH_BYTES + len(record.namespace) + _BESIDE_BYTES
    return record_bytes(record) + listed_bytes


def block_room(length: int, num_layers: int, names_bytes: int) -> int:
    """As `room_bytes`, of a block of this shape."""
    listed_bytes = ROW.itemsize + names_bytes + _BESIDE_BYTES
    return shape_layout(length, num_layers, names_bytes)[1] + listed_bytes


class Listing:
    """Grows with the records, in their order."""

    def __init__(self) -> None:
        self.tombstones: list[TombstoneRecord] = []
        self.end = 0
        """Of the last record."""
        self.next_sequence = 0
        self.names: dict[int, ObjectName] = {}
        """By row."""
        self._rows = bytearray()
        self._kind_ids: dict[Kind, int] = {}

    def __len__(self) -> int:
        """Of blocks."""
        return len(self._rows) // ROW.itemsize

    @property
    def rows(self) -> Rows:
        return np.frombuffer(bytes(self._rows), ROW)

    @property
    def first_sequence(self) -> int:
        """Of the blocks; 0 of an unreadable bucket, which may hold anything."""
        if not len(self):
            return self.next_sequence
        return int(self.rows["sequence"].min())

    @property
    def kinds(self) -> list[Kind]:
        return list(self._kind_ids)

    def add(self, place: Place, record: BlockRecord | TombstoneRecord) -> None:
        self.next_sequence = max(self.next_sequence, place.sequence + 1)
        self.end = place.offset + record_bytes(record)
        if isinstance(record, BlockRecord):
            self._add_block(place, record)
        elif not record.is_empty:
            self.tombstones.append(record)

    def _add_block(self, place: Place, block: BlockRecord) -> None:
        meta = block.meta
        kind = Kind(meta.namespace, meta.model, meta.tenant)
        if meta.name:
            self.names[len(self)] = meta.name, meta.value_bytes
        self._rows += _PACK.pack(
            meta.hash,
            meta.parent,
            place.sequence,
            block.version,
            block.seal_checksum,
            block.created_s,
            place.offset // ALIGN,
            block.length,
            meta.depth,
            meta.num_tokens,
            self._kind_ids.setdefault(kind, len(self._kind_ids)),
            block.num_layers,
        )

    def pack(self, offset: int, secret: int) -> memoryview:
        """The footer that begins at `offset`; aligned, as is its length."""
        kinds = [(kind.namespace, kind.model, kind.tenant) for kind in self._kind_ids]
        beside = _encode((kinds, _tombstones_to_pack(self.tombstones), self.names))
        body = bytes(self._rows) + beside
        shape = (offset, self.end, self.next_sequence, len(self), len(beside))
        end = _END.pack(0, _MAGIC, _FORMAT, 0, 0, *shape)
        checksum = _checksum(body, end, secret)
        num_bytes = round_up(len(body) + _END.size)
        packed = aligned_buffer(num_bytes)[:num_bytes]
        packed[: len(body)] = body
        packed[-_END.size :] = checksum.to_bytes(8, "little") + end[8:]
        return packed

    @classmethod
    def of(cls, records: Iterable[tuple[Place, BlockRecord | TombstoneRecord]]) -> "Listing":
        listing = cls()
        for place, record in records:
            listing.add(place, record)
        return listing

    @classmethod
    def unpacked(cls, body: bytes, num_rows: int) -> "Listing":
        """Of a body whose checksum was right."""
        listing = cls()
        at = num_rows * ROW.itemsize
        listing._rows = bytearray(body[:at])
        kinds, tombstones, listing.names = _decode(body[at:])
        listing._kind_ids = {Kind(*names): number for number, names in enumerate(kinds)}
        listing.tombstones = _unpacked_tombstones(tombstones)
        return listing


def pack_tombstones(tombstones: Iterable[TombstoneRecord]) -> bytes:
    """As a footer has them."""
    return _encode(_tombstones_to_pack(tombstones))


def unpack_tombstones(packed: bytes) -> list[TombstoneRecord]:
    """Of bytes whose checksum was right."""
    return _unpacked_tombstones(_decode_tombstones(packed))


def _tombstones_to_pack(tombstones: Iterable[TombstoneRecord]) -> _Tombstones:
    return [(int(t.kind), t.until, b"".join(t.keys), t.namespace) for t in tombstones]


def _unpacked_tombstones(packed: _Tombstones) -> list[TombstoneRecord]:
    tombstones = []
    for kind, until, keys, namespace in packed:
        starts = range(0, len(keys), HASH_BYTES)
        hashes = tuple(BlockHash(keys[start : start + HASH_BYTES]) for start in starts)
        tombstones.append(TombstoneRecord(RecordKind(kind), until, hashes, namespace))
    return tombstones


def write_footer(bucket: Bucket, listing: Listing) -> int:
    """Where the file has to end now. Raises OSError. Does not sync: one that is torn is not found."""
    offset = bucket.used_bytes
    packed = listing.pack(offset, bucket.secret)
    write_all(bucket.file, [packed], offset)
    return offset + len(packed)


def read_footer(bucket: Bucket, *, is_direct: bool) -> Listing | None:
    """None where the bucket has none, or not a whole one. One read, or two. Raises OSError."""
    size = bucket.file_bytes
    if not size:
        return None
    start = size - min(_TAIL_BYTES, size)
    data = _read(bucket, start, is_direct)
    checksum, magic, form, _, _, offset, end, next_sequence, num_rows, num_beside = (
        _END.unpack_from(data, len(data) - _END.size)
    )
    num_bytes = num_rows * ROW.itemsize + num_beside
    if (magic, form) != (_MAGIC, _FORMAT) or not end <= offset <= size - _END.size - num_bytes:
        return None
    if offset < start:
        start, data = offset // ALIGN * ALIGN, _read(bucket, offset // ALIGN * ALIGN, is_direct)
    body = data[offset - start : offset - start + num_bytes]
    if _checksum(body, data[-_END.size :], bucket.secret) != checksum:
        return None
    listing = Listing.unpacked(body, num_rows)
    listing.end, listing.next_sequence = end, next_sequence
    return listing


def _read(bucket: Bucket, start: int, is_direct: bool) -> bytes:
    """From there to the end."""
    data = aligned_buffer(bucket.file_bytes - start)[: bucket.file_bytes - start]
    read_into(bucket.file, start, data, is_direct=is_direct)
    return bytes(data)


def _checksum(body: bytes, end: bytes, secret: int) -> int:
    digest = xxhash.xxh3_64(body, secret)
    digest.update(end[8:])
    return digest.intdigest()
