"""The trailer that ends a block, and the checksums that make a read safe.

A layer's checksum is xxh3-64 over its k row, then its v row; the seal checksum is xxh3-64 of the trailer. Who knows
the seal checksum from the directory can trust the trailer, and by it every layer, wherever the bytes came from.
"""

import struct
from dataclasses import dataclass

import xxhash

from daemons.core.errors import TransferError
from daemons.core.ids import BlockHash

MAGIC = b"MCBLOCK1"
MAX_LAYERS = 1024
_HEADER = struct.Struct("<8s16sQQII")
"""magic, block hash, version, payload length, number of layers, bytes of a piece or zero"""


class BadSeal(TransferError):
    """The bytes are not those that were sealed under this name."""


@dataclass(frozen=True, slots=True)
class Trailer:
    """What was sealed. `checksums[layer]` covers the layer's k and v rows, or piece `layer` of an object."""

    hash: BlockHash
    version: int
    length: int
    checksums: tuple[int, ...]
    piece_bytes: int = 0

    @property
    def num_layers(self) -> int:
        return len(self.checksums)

    @property
    def row_bytes(self) -> int:
        return self.length // (2 * len(self.checksums))


def trailer_length(num_layers: int) -> int:
    return _HEADER.size + 8 * num_layers


def layer_checksums(payload: memoryview, num_layers: int) -> list[int]:
    """Checksums of a whole payload `[layer][k|v][...]`, where k and v of a layer are adjacent."""
    layer_bytes = len(payload) // num_layers
    return [
        xxhash.xxh3_64_intdigest(payload[start : start + layer_bytes])
        for start in range(0, len(payload), layer_bytes)
    ]


def num_pieces(length: int, piece_bytes: int) -> int:
    """How many "layers" a payload in pieces has."""
    return -(-length // piece_bytes)


def payload_checksums(payload: memoryview, num_layers: int, piece_bytes: int = 0) -> list[int]:
    """Of layers that are equal, or of pieces of which the last may be shorter."""
    if not piece_bytes:
        return layer_checksums(payload, num_layers)
    return [
        xxhash.xxh3_64_intdigest(payload[start : start + piece_bytes])
        for start in range(0, len(payload), piece_bytes)
    ]


def row_checksums(k_rows: memoryview, v_rows: memoryview, row_bytes: int, count: int) -> list[int]:
    """Checksums of one layer of `count` blocks whose k rows lie one behind the other, as do their v rows."""
    digest = xxhash.xxh3_64()
    checksums = []
    for start in range(0, count * row_bytes, row_bytes):
        end = start + row_bytes
        digest.reset()
        digest.update(k_rows[start:end])
        digest.update(v_rows[start:end])
        checksums.append(digest.intdigest())
    return checksums


def seal(trailer: Trailer) -> tuple[bytes, int]:
    """The trailer's bytes and the seal checksum over them."""
    packed = pack_trailer(trailer)
    return packed, xxhash.xxh3_64_intdigest(packed)


def pack_trailer(trailer: Trailer) -> bytes:
    header = _HEADER.pack(
        MAGIC,
        trailer.hash,
        trailer.version,
        trailer.length,
        trailer.num_layers,
        trailer.piece_bytes,
    )
    return header + struct.pack(f"<{trailer.num_layers}Q", *trailer.checksums)


def parse_trailer(
    packed: bytes | memoryview, expected_checksum: int, expected_hash: BlockHash
) -> Trailer:
    """Raises BadSeal unless these are the very bytes that were sealed under this hash."""
    if xxhash.xxh3_64_intdigest(packed) != expected_checksum:
        raise BadSeal("the trailer does not match the seal checksum")
    if len(packed) < _HEADER.size:
        raise BadSeal(f"a trailer of {len(packed)} bytes is too short")
    magic, block_hash, version, length, num_layers, piece_bytes = _HEADER.unpack_from(packed)
    if magic != MAGIC or block_hash != expected_hash:
        raise BadSeal("the trailer is of another block")
    if not 0 < num_layers <= MAX_LAYERS or len(packed) != trailer_length(num_layers):
        raise BadSeal(f"a trailer of {len(packed)} bytes cannot have {num_layers} layers")
    if not is_shape(length, num_layers, piece_bytes):
        raise BadSeal(f"{length} bytes are not {num_layers} layers")
    checksums = struct.unpack_from(f"<{num_layers}Q", packed, _HEADER.size)
    return Trailer(BlockHash(block_hash), version, length, checksums, piece_bytes)


def is_shape(length: int, num_layers: int, piece_bytes: int = 0) -> bool:
    """Whether a payload can be cut so."""
    if length <= 0 or num_layers <= 0:
        return False
    if piece_bytes:
        return num_pieces(length, piece_bytes) == num_layers
    return length % (2 * num_layers) == 0
