"""A block, or some of its layers, from its bucket into the caller's memory, verified. On the caller's thread."""

from dataclasses import dataclass
from typing import Final

import xxhash

from daemons.core.errors import Rejected
from daemons.core.ids import short
from daemons.core.units import MIB
from daemons.store.lower import BlockRecord
from daemons.store.segment.seal import BadSeal, layer_checksums, parse_trailer
from daemons.store.ssd.aligned import (
    address_of,
    aligned_buffer,
    read_in_pieces,
    read_into,
    round_up,
)
from daemons.store.ssd.files import ALIGN, BucketFile
from daemons.store.ssd.recovery import verify_block

_MIN_PIECE_BYTES: Final = 2 * MIB
"""Smaller ones cost more than they hide: on a virtual disk blocks of 1 MiB became 3 % slower, of 8 MiB 5 % faster."""
_MAX_PIECES: Final = 8


class _LayerHashing:
    """Layers are hashed once all of them is there; those that lie across a border of pieces at the end."""

    def __init__(self, payload: memoryview, num_layers: int) -> None:
        self._payload = payload
        self._layer_bytes = len(payload) // num_layers
        self._checksums: list[int | None] = [None] * num_layers

    def on_arrival(self, start: int, end: int) -> None:
        first = -(-start // self._layer_bytes)
        last = min(end // self._layer_bytes, len(self._checksums))
        for layer in range(first, last):
            self._hash(layer)

    def finish(self) -> list[int]:
        for layer, checksum in enumerate(self._checksums):
            if checksum is None:
                self._hash(layer)
        return [checksum for checksum in self._checksums if checksum is not None]

    def _hash(self, layer: int) -> None:
        at = layer * self._layer_bytes
        self._checksums[layer] = xxhash.xxh3_64_intdigest(
            self._payload[at : at + self._layer_bytes]
        )


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Where a block's payload begins."""

    block: BlockRecord
    file: BucketFile
    start: int
    is_direct: bool

    def read(self, target: memoryview, layers: tuple[int, int] | None) -> int:
        """Bytes that were filled. Raises OSError, BadSeal, Rejected."""
        block = self.block
        if layers is None and len(target) >= block.stored_bytes:
            self._read_whole(target[: block.stored_bytes])
            return block.stored_bytes
        return self._read_layers(target, *(layers or (0, block.num_layers)))

    def _read_whole(self, stored: memoryview) -> None:
        block = self.block
        is_long = self.is_direct and len(stored) >= 2 * _MIN_PIECE_BYTES
        if not is_long or self.start % ALIGN or address_of(stored) % ALIGN:
            read_into(self.file, self.start, stored, is_direct=self.is_direct)
            verify_block(block, stored)
            return
        piece_bytes = max(_MIN_PIECE_BYTES, round_up(-(-len(stored) // _MAX_PIECES)))
        hashing = _LayerHashing(stored[: block.length], block.num_layers)
        read_in_pieces(self.file, self.start, stored, piece_bytes, hashing.on_arrival)
        verify_block(block, stored, hashing.finish())

    def _read_layers(self, target: memoryview, first: int, last: int) -> int:
        block = self.block
        layer_bytes = block.length // block.num_layers
        if not 0 <= first < last <= block.num_layers or len(target) < (last - first) * layer_bytes:
            raise Rejected(
                f"layers {first} to {last} of {block.num_layers} do not go into {len(target)} bytes"
            )
        packed = aligned_buffer(block.trailer_bytes)[: block.trailer_bytes]
        read_into(self.file, self.start + block.length, packed, is_direct=self.is_direct)
        trailer = parse_trailer(packed, block.seal_checksum, block.meta.hash)
        payload = target[: (last - first) * layer_bytes]
        begin = self.start + first * layer_bytes
        read_into(self.file, begin, payload, is_direct=self.is_direct)
        if layer_checksums(payload, last - first) != list(trailer.checksums[first:last]):
            raise BadSeal(f"block {short(block.meta.hash)} is not what was sealed")
        return len(payload)
