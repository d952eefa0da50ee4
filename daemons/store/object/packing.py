"""Blocks one behind the other in the bytes of a part, each at a multiple of ALIGN, and how one is verified."""

from collections.abc import Sequence

import numpy as np

from daemons.core.ids import short
from daemons.store.lower import BlockRecord
from daemons.store.object.manifest import Entry
from daemons.store.object.queue import Pending
from daemons.store.segment.seal import BadSeal, parse_trailer, payload_checksums
from daemons.store.ssd.aligned import copy_bytes, round_up


def pack_sources(puts: Sequence[Pending]) -> tuple[memoryview, list[Entry]]:
    """A copy: the sources may go when this returns."""
    return _pack([(put.block, put.source[: put.block.stored_bytes]) for put in puts])


def pack(found: Sequence[tuple[Entry, memoryview]]) -> tuple[memoryview, list[Entry]]:
    return _pack([(entry.block, stored) for entry, stored in found])


def verify_stored(block: BlockRecord, stored: memoryview) -> None:
    """Payload and trailer against the seal. Raises BadSeal."""
    if len(stored) != block.stored_bytes:
        raise BadSeal(f"block {short(block.meta.hash)} is cut short")
    trailer = parse_trailer(stored[block.length :], block.seal_checksum, block.meta.hash)
    if (trailer.length, trailer.num_layers) != (block.length, block.num_layers):
        raise BadSeal(f"the trailer of block {short(block.meta.hash)} tells another shape")
    checksums = payload_checksums(stored[: block.length], block.num_layers, trailer.piece_bytes)
    if list(trailer.checksums) != checksums:
        raise BadSeal(f"block {short(block.meta.hash)} is not what was sealed")


def _pack(blocks: Sequence[tuple[BlockRecord, memoryview]]) -> tuple[memoryview, list[Entry]]:
    entries, end = [], 0
    for block, _ in blocks:
        entries.append(Entry(block, end))
        end += round_up(block.stored_bytes)
    body = np.zeros(end, np.uint8).data
    for (_, offset), (block, stored) in zip(entries, blocks, strict=True):
        copy_bytes(body[offset : offset + block.stored_bytes], stored)
    return body, entries
