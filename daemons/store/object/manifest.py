"""A part's manifest: which blocks lie where in it. What no manifest names does not exist.

Keys are never written twice: a part has a random name, and a manifest that changes (blocks were deleted) is a new
object with the next revision, after which the one before is removed. So nobody ever reads a mixture, whatever the store
promises about overwriting, and two lives of a node cannot disturb each other.
"""

import re
import zlib
from typing import NamedTuple

import msgspec
import xxhash

from daemons.core.errors import ConfigError, McError
from daemons.core.ids import BlockHash
from daemons.protocol.block import BlockMeta
from daemons.store.lower import BlockRecord
from daemons.store.segment.seal import MAX_LAYERS

FORMAT = 1
DATA = "data/"
MANIFESTS = "manifest/"
_NAME = re.compile(r"([0-9a-f]{8})-([0-9a-f]{16})")
_MANIFEST = re.compile(MANIFESTS + r"([0-9a-f]{8}-[0-9a-f]{16})\.([0-9]{6})")
_MAX_BYTES = 64 << 20
"""Of a manifest unpacked: more is not ours."""


class DamagedManifest(McError):
    """It is not what was written."""


class Entry(NamedTuple):
    """One block of a part."""

    block: BlockRecord
    offset: int


class _Row(msgspec.Struct, frozen=True, array_like=True):
    hash: bytes
    parent: bytes
    namespace: bytes
    depth: int
    num_tokens: int
    model: str
    tenant: str
    name: bytes
    value_bytes: int
    offset: int
    length: int
    num_layers: int
    version: int
    seal_checksum: int
    created_s: float


class _Manifest(msgspec.Struct, frozen=True):
    format: int
    part: str
    blocks: list[_Row]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Manifest).decode


def part_name(number: int, secret: int) -> str:
    """Sorts by age."""
    return f"{number:08x}-{secret:016x}"


def number_of(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1], 16)


def data_key(name: str) -> str:
    return DATA + name


def manifest_key(name: str, revision: int) -> str:
    return f"{MANIFESTS}{name}.{revision:06d}"


def parse_manifest_key(key: str) -> tuple[str, int] | None:
    """(part, revision); None for what is not ours."""
    match = _MANIFEST.fullmatch(key)
    return None if match is None else (match[1], int(match[2]))


def encode_manifest(name: str, entries: list[Entry]) -> bytes:
    rows = [_row_of(entry) for entry in entries]
    packed = zlib.compress(_encode(_Manifest(FORMAT, name, rows)), 1)
    return xxhash.xxh3_64_digest(packed) + packed


def decode_manifest(name: str, packed: memoryview) -> list[Entry]:
    """Raises DamagedManifest; ConfigError for a newer format's."""
    if xxhash.xxh3_64_digest(packed[8:]) != packed[:8]:
        raise DamagedManifest(f"the manifest of {name} does not match its checksum")
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(packed[8:], _MAX_BYTES)
        manifest = _decode(plain)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise DamagedManifest(f"the manifest of {name} cannot be read: {error}") from None
    if manifest.format != FORMAT:
        raise ConfigError(
            f"the object tier has manifests of format {manifest.format}, written by a newer version than this one; "
            "upgrade, or give the node another object.prefix"
        )
    if manifest.part != name:
        raise DamagedManifest(f"the manifest of {name} is that of {manifest.part}")
    return [_entry_of(row) for row in manifest.blocks]


def _row_of(entry: Entry) -> _Row:
    block, meta = entry.block, entry.block.meta
    return _Row(
        meta.hash,
        meta.parent,
        meta.namespace,
        meta.depth,
        meta.num_tokens,
        meta.model,
        meta.tenant,
        meta.name,
        meta.value_bytes,
        entry.offset,
        block.length,
        block.num_layers,
        block.version,
        block.seal_checksum,
        block.created_s,
    )


def _entry_of(row: _Row) -> Entry:
    assert 0 < row.num_layers <= MAX_LAYERS, "a manifest with the right checksum is ours"
    meta = BlockMeta(
        hash=BlockHash(row.hash),
        parent=BlockHash(row.parent),
        namespace=row.namespace,
        depth=row.depth,
        num_tokens=row.num_tokens,
        model=row.model,
        tenant=row.tenant,
        name=row.name,
        value_bytes=row.value_bytes,
    )
    block = BlockRecord(
        meta, row.length, row.num_layers, row.version, row.seal_checksum, row.created_s
    )
    return Entry(block, row.offset)
