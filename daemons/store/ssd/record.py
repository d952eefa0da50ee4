"""What lies in a bucket: records, each a header and a body, aligned to a page.

A header knows its own place and is hashed under its bucket's secret number, so bytes of another bucket, an earlier
life or a hostile payload are never taken for one. A block's body is its payload and the trailer of segment/seal.py. A
small body lies right behind its header, a large one on the next page, so that it is read straight into its slot.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

import xxhash

from daemons.core.errors import ConfigError
from daemons.core.ids import BlockHash
from daemons.core.units import KIB
from daemons.protocol.block import BlockMeta
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.store.lower.block_record import SIZE_BYTES, BlockRecord
from daemons.store.segment.seal import MAX_LAYERS, trailer_length
from daemons.store.ssd.aligned import round_up
from daemons.store.ssd.files import ALIGN

FORMAT = 1
MAX_DELETES = 1000
"""Keys in one record of deletes that is written; earlier versions wrote twice as many."""
MAX_READ_DELETES = 2000

_MAGIC = b"MCSR"
_HEADER = struct.Struct("<Q4sBBHQQQQHHHHHHI16s16sIIQQQd")
"""checksum of all behind it, magic, format, kind, header bytes · sequence, offset, durable to, body bytes · body
offset, layers, lengths of namespace, model, tenant, object's name, zero · hash, parent · depth, tokens, length,
version, seal checksum, created"""

_PACKED_BYTES = 28 * KIB
"""Bodies below go right behind the header: a page less of disk is worth more than a copy."""


class RecordKind(IntEnum):
    BLOCK = 1
    DELETES = 2
    """Body: hashes. All their blocks of a sequence below `version` are gone."""
    CLEAR = 3
    """All blocks of a namespace with a sequence below `version` are gone."""
    CLEAR_ALL = 4


@dataclass(frozen=True, slots=True)
class TombstoneRecord:
    """`until`: what was put with this or a higher sequence lives."""

    kind: RecordKind
    until: int
    keys: tuple[BlockHash, ...] = ()
    namespace: bytes = b""

    @property
    def is_empty(self) -> bool:
        """It only marks a place in the log."""
        return self.kind is RecordKind.DELETES and not self.keys


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record is, and when it was written."""

    offset: int
    sequence: int
    durable_to: int = 0
    """The bucket was on disk up to here when this was written."""


@dataclass(frozen=True, slots=True)
class Header:
    """A decoded header. `block` is None for a tombstone, whose body is decoded once it is read."""

    kind: RecordKind
    place: Place
    body_offset: int
    body_bytes: int
    block: BlockRecord | None
    until: int
    namespace: bytes
    body_checksum: int

    @property
    def record_bytes(self) -> int:
        return round_up(self.body_offset + self.body_bytes)


def block_layout(block: BlockRecord) -> tuple[int, int]:
    """(offset of the body in the record, bytes of the whole record)."""
    return shape_layout(block.length, block.num_layers, block.names_bytes)


def shape_layout(length: int, num_layers: int, names_bytes: int) -> tuple[int, int]:
    """As `block_layout`, of any block of this shape."""
    stored_bytes = length + trailer_length(num_layers)
    body_offset = -(-(_HEADER.size + names_bytes) // 64) * 64
    if stored_bytes >= _PACKED_BYTES:
        body_offset = ALIGN
    return body_offset, round_up(body_offset + stored_bytes)


def encode_block(block: BlockRecord, place: Place, secret: int) -> bytes:
    """The header; the body follows at `block_layout(block)[0]`."""
    meta = block.meta
    names = block.names
    fields = (
        block_layout(block)[0],
        block.num_layers,
        *(len(name) for name in names),
        0,
        meta.hash,
        meta.parent,
        meta.depth,
        meta.num_tokens,
        block.length,
        block.version,
        block.seal_checksum,
        block.created_s,
    )
    return _encode(RecordKind.BLOCK, place, block.stored_bytes, fields, b"".join(names), secret)


def encode_tombstone(tombstone: TombstoneRecord, place: Place, secret: int) -> bytes:
    """Header and body."""
    body = b"".join(tombstone.keys)
    size = _HEADER.size + len(tombstone.namespace)
    checksum = xxhash.xxh3_64_intdigest(body, secret)
    zero = bytes(HASH_BYTES)
    shape = (size, 0, len(tombstone.namespace), 0, 0, 0, 0, zero, zero, 0, 0, 0)
    fields = (*shape, tombstone.until, checksum, 0.0)
    return _encode(tombstone.kind, place, len(body), fields, tombstone.namespace, secret) + body


def record_bytes(record: BlockRecord | TombstoneRecord) -> int:
    """Of the whole record."""
    if isinstance(record, BlockRecord):
        return block_layout(record)[1]
    return round_up(_HEADER.size + len(record.namespace) + len(record.keys) * HASH_BYTES)


def decode_header(page: memoryview, offset: int, secret: int) -> Header | None:
    """None unless a header of this bucket and this place begins here. Raises ConfigError for a newer format's."""
    if page[8:12] != _MAGIC:
        return None
    (
        checksum,
        _,
        form,
        kind,
        header_bytes,
        sequence,
        own_offset,
        durable_to,
        body_bytes,
        *fields,
    ) = _HEADER.unpack_from(page)
    if not _HEADER.size <= header_bytes <= len(page):
        return None
    if xxhash.xxh3_64_intdigest(page[8:header_bytes], secret) != checksum or own_offset != offset:
        return None
    if form != FORMAT:
        raise ConfigError(
            f"a bucket of format {form} was written by a newer version than this one; "
            "upgrade, or give the node an empty directory"
        )
    place = Place(offset, sequence, durable_to)
    return _decode(page, RecordKind(kind), place, body_bytes, fields)


def decode_tombstone(header: Header, body: memoryview, secret: int) -> TombstoneRecord | None:
    """None when the body is damaged."""
    if xxhash.xxh3_64_intdigest(body, secret) != header.body_checksum or len(body) % HASH_BYTES:
        return None
    keys = tuple(
        BlockHash(bytes(body[at : at + HASH_BYTES])) for at in range(0, len(body), HASH_BYTES)
    )
    return TombstoneRecord(header.kind, header.until, keys, header.namespace)


def _encode(
    kind: RecordKind,
    place: Place,
    body_bytes: int,
    fields: tuple[object, ...],
    names: bytes,
    secret: int,
) -> bytes:
    head = (FORMAT, kind, _HEADER.size + len(names))
    where = (place.sequence, place.offset, place.durable_to, body_bytes)
    header = _HEADER.pack(0, _MAGIC, *head, *where, *fields) + names
    checksum = xxhash.xxh3_64_intdigest(memoryview(header)[8:], secret)
    return checksum.to_bytes(8, "little") + header[8:]


def _decode(
    page: memoryview, kind: RecordKind, place: Place, body_bytes: int, fields: list[int]
) -> Header:
    body_offset, num_layers, namespace_bytes, model_bytes, tenant_bytes, name_bytes, _ = fields[:7]
    block_hash, parent, depth, num_tokens, length, version, checksum, created_s = fields[7:]
    at = _HEADER.size
    namespace = bytes(page[at : at + namespace_bytes])
    at += namespace_bytes
    block = None
    if kind is RecordKind.BLOCK:
        model = str(page[at : at + model_bytes], "utf-8")
        tenant = str(page[at + model_bytes : at + model_bytes + tenant_bytes], "utf-8")
        at += model_bytes + tenant_bytes
        named = bytes(page[at : at + name_bytes])
        assert 0 < num_layers <= MAX_LAYERS, "a header with the right checksum is ours"
        meta = BlockMeta(
            hash=BlockHash(block_hash),  # type: ignore[arg-type]  # struct fields of several types
            parent=BlockHash(parent),  # type: ignore[arg-type]
            namespace=namespace,
            depth=depth,
            num_tokens=num_tokens,
            model=model,
            tenant=tenant,
            name=named[:-SIZE_BYTES],
            value_bytes=int.from_bytes(named[-SIZE_BYTES:], "little"),
        )
        block = BlockRecord(meta, length, num_layers, version, checksum, created_s)
    return Header(kind, place, body_offset, body_bytes, block, version, namespace, checksum)
