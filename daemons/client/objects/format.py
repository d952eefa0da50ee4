"""How an object lies in its blocks: the value or, for a large one, a manifest, then a footer; chunks bare. Pure.

The footer has a fixed size, so that who knows a block's length knows where the value ends. A manifest is the seal
checksums of the chunks in order; their keys follow from the name's key, the version and the index.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import numpy as np

from daemons.core.errors import Rejected
from daemons.core.ids import BlockHash
from daemons.core.units import MIB
from daemons.protocol.block import BlockMeta
from daemons.protocol.name_hash import MAX_NAME_BYTES, chunk_key, name_key
from daemons.store.directory.object_rows import OBJECT_MODEL
from daemons.store.segment.seal import BadSeal

PIECE_BYTES: Final = MIB
"""What has a checksum of its own."""
_MAGIC: Final = b"MCOBJECT"
_MAX_DIMENSIONS: Final = 8
_FOOTER: Final = struct.Struct("<8sQIBBH16s8Q")
"""magic, value's length, bytes of a chunk or zero, kind, dimensions, zero, dtype, shape"""
FOOTER_BYTES: Final = _FOOTER.size

_Second = TypeVar("_Second")
Kind = Literal["bytes", "numpy", "torch"]
_KINDS: tuple[Kind, ...] = ("bytes", "numpy", "torch")


@dataclass(frozen=True, slots=True)
class ValueType:
    """What a value was: flat bytes, or an array with its dtype and shape."""

    kind: Kind = "bytes"
    dtype: str = ""
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Footer:
    """`chunk_bytes` 0: the value lies before it; else a manifest of chunks of so many bytes."""

    value_bytes: int
    chunk_bytes: int = 0
    type: ValueType = ValueType()

    @property
    def num_chunks(self) -> int:
        return -(-self.value_bytes // self.chunk_bytes) if self.chunk_bytes else 0

    def chunk_length(self, index: int) -> int:
        return min(self.chunk_bytes, self.value_bytes - index * self.chunk_bytes)


def type_of(value: Any) -> ValueType:
    """Raises Rejected for an array that a footer cannot describe."""
    shape = getattr(value, "shape", None)
    if shape is None or isinstance(value, memoryview):
        return ValueType()
    kind: Kind = "numpy" if isinstance(value, np.ndarray) else "torch"
    dtype = value.dtype.str if isinstance(value, np.ndarray) else str(value.dtype)
    dtype = dtype.removeprefix("torch.")
    if len(shape) > _MAX_DIMENSIONS or len(dtype) > 16:
        raise Rejected(f"an array of {dtype} with {len(shape)} dimensions cannot be described")
    return ValueType(kind, dtype, tuple(int(size) for size in shape))


def pack_footer(footer: Footer) -> bytes:
    shape = footer.type.shape
    return _FOOTER.pack(
        _MAGIC,
        footer.value_bytes,
        footer.chunk_bytes,
        _KINDS.index(footer.type.kind),
        len(shape),
        0,
        footer.type.dtype.encode(),
        *shape,
        *[0] * (_MAX_DIMENSIONS - len(shape)),
    )


def parse_footer(packed: bytes | memoryview) -> Footer:
    """Raises BadSeal for what no release of this project has sealed."""
    magic, value_bytes, chunk_bytes, kind, num_dimensions, _, dtype, *shape = _FOOTER.unpack(packed)
    if magic != _MAGIC or kind >= len(_KINDS) or num_dimensions > _MAX_DIMENSIONS:
        raise BadSeal("the block is no object")
    value_type = ValueType(
        _KINDS[kind], dtype.rstrip(b"\0").decode("ascii", "replace"), tuple(shape[:num_dimensions])
    )
    return Footer(value_bytes, chunk_bytes, value_type)


def pack_manifest(checksums: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(checksums)}Q", *checksums)


def parse_manifest(packed: bytes, footer: Footer) -> tuple[int, ...]:
    """Raises BadSeal."""
    if len(packed) != 8 * footer.num_chunks:
        raise BadSeal(f"a manifest of {len(packed)} bytes for {footer.num_chunks} chunks")
    return struct.unpack(f"<{footer.num_chunks}Q", packed)


def object_meta(namespace: bytes, name: bytes, value_bytes: int) -> BlockMeta:
    key = name_key(namespace, name)
    return BlockMeta(
        hash=key,
        parent=key,
        namespace=namespace,
        depth=0,
        num_tokens=0,
        model=OBJECT_MODEL,
        name=name,
        value_bytes=value_bytes,
    )


def chunk_meta(namespace: bytes, key: BlockHash, version: int, index: int) -> BlockMeta:
    """Deeper than its object, so that among equals it is evicted first."""
    return BlockMeta(
        hash=chunk_key(key, version, index),
        parent=key,
        namespace=namespace,
        depth=1 + index,
        num_tokens=0,
        model=OBJECT_MODEL,
    )


def version_text(version: int) -> str:
    """Of the master's life that gave it, and the number there."""
    return f"{version >> 40}.{version & ((1 << 40) - 1)}"


def packed_text(text: bytes | str, what: str) -> bytes:
    """Never bytes(7), which is seven zero bytes. Raises Rejected for what is neither text nor bytes."""
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes | bytearray | memoryview):
        return bytes(text)
    raise Rejected(f"{what} is str or bytes, not {type(text).__name__}")


def pairs_of(
    pairs: Iterable[tuple[bytes | str, _Second]], what: str
) -> list[tuple[bytes | str, _Second]]:
    """Those of a name and `what`. Raises Rejected for what is none, such as a dict, or names alone."""
    found = list(pairs)
    if any(not isinstance(each, tuple | list) or len(each) != 2 for each in found):
        raise Rejected(
            f"several are given as pairs of name and {what}; those of a dict are its items()"
        )
    return found


def as_name(name: bytes | str) -> bytes:
    """Raises Rejected for what cannot be a name."""
    packed = packed_text(name, "a name")
    if not 0 < len(packed) <= MAX_NAME_BYTES:
        raise Rejected(f"a name has 1 to {MAX_NAME_BYTES} bytes, not {len(packed)}")
    return packed
