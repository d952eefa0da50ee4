"""Values on their way to nodes, and the blocks they become: the value itself, or chunks and then a manifest of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from daemons.client.objects.format import (
    FOOTER_BYTES,
    PIECE_BYTES,
    Footer,
    ValueType,
    chunk_meta,
    object_meta,
    pack_footer,
    pack_manifest,
)
from daemons.client.objects.source import PutMemory, SourceMemory
from daemons.core.errors import Exhausted, McError
from daemons.core.units import MIB
from daemons.protocol.block import BlockLocation, BlockMeta, PutBlock
from daemons.protocol.segment import Source, Strided
from daemons.store.segment.seal import num_pieces
from daemons.transfer import ByteArray

_AHEAD_BYTES: Final = MIB
"""Of a call: copied in the time in which a master answers."""


@dataclass(slots=True, eq=False)
class Item:
    """One value on its way. `outcome`: its location once it is sealed, or why it is not."""

    name: bytes
    value: ByteArray
    type: ValueType
    outcome: BlockLocation | McError | None = None
    version: int = 0
    wanted: int = 0
    """Replicas; 0 for what the pool wants."""
    meta: BlockMeta | None = None
    source: Source | None = None
    """Where nodes can read it. Both are made while the master answers, or when they are needed."""
    footer: Footer | None = None
    chunks: list[BlockLocation | None] = field(default_factory=list)
    has_manifest: bool = False
    """It was sent, so whoever is unlucky sees the object."""


@dataclass(slots=True, eq=False)
class Part:
    """A block to put: chunk `index` of an item, or, with None, the object's own."""

    item: Item
    index: int | None
    block: PutBlock
    why: McError | None = None
    refused: Exhausted | None = None
    """What a node said that had no room, in whichever round."""

    @property
    def num_bytes(self) -> int:
        return self.block.source.ranges.length

    @property
    def is_inline(self) -> bool:
        """Whether its bytes go with the message."""
        return not self.block.source.ranges.row_bytes and bool(self.item.value.nbytes)


class PartMaker:
    """Of one call with values of so many bytes in all. `used`, where it is set, is to be given back when it ends."""

    def __init__(self, memory: SourceMemory, namespace: bytes, num_bytes: int) -> None:
        self.used: PutMemory | None = None
        self._memory = memory
        self._namespace = namespace
        self.is_inline = num_bytes <= memory.max_inline_bytes
        """The values go with the message: nodes need not look for them, nor anybody keep them."""

    def make_readable(self, items: Sequence[Item]) -> None:
        """The first of them, ahead of time; what fails does so again, and tells, when its parts are made."""
        left = _AHEAD_BYTES
        for item in items:
            left -= item.value.nbytes
            if left < 0:
                return
            self._meta(item)
            if self.is_inline:
                continue
            try:
                self._source(item)
            except McError:
                return

    def first_parts(self, item: Item, chunk_bytes: int) -> list[Part]:
        """The whole object, or its chunks. Raises Exhausted."""
        size = item.value.nbytes
        if size <= chunk_bytes:
            item.footer = Footer(size, 0, item.type)
            block = self._inline_block(item) if self.is_inline else self._whole_block(item)
            return [Part(item, None, block)]
        source = self._source(item)
        item.footer = footer = Footer(size, chunk_bytes, item.type)
        item.chunks = [None] * footer.num_chunks
        key = self._meta(item).hash
        parts = []
        for index in range(footer.num_chunks):
            length = footer.chunk_length(index)
            block = PutBlock(
                meta=chunk_meta(self._namespace, key, item.version, index),
                source=_part_of(source, index * chunk_bytes, length),
                num_layers=num_pieces(length, PIECE_BYTES),
                version=item.version,
                piece_bytes=PIECE_BYTES,
                wanted=item.wanted,
                object_name=item.name,
            )
            parts.append(Part(item, index, block))
        return parts

    def manifest(self, item: Item) -> Part:
        item.has_manifest = True
        checksums = [chunk.seal_checksum for chunk in item.chunks if chunk is not None]
        packed = np.frombuffer(pack_manifest(checksums), np.uint8)
        return Part(item, None, self._object_block(item, self._add(packed)))

    def outline(self, part: Part) -> None:
        """Of a node that takes no values in messages: it may read this one, and all that follow, where they are."""
        self._memory.max_inline_bytes = 0
        part.block = self._whole_block(part.item)

    def _meta(self, item: Item) -> BlockMeta:
        """Of the object's own block."""
        if item.meta is None:
            item.meta = object_meta(self._namespace, item.name, item.value.nbytes)
        return item.meta

    def _source(self, item: Item) -> Source:
        if item.source is None:
            item.source = self._add(item.value)
        return item.source

    def _add(self, value: ByteArray) -> Source:
        if self.used is None:
            self.used = self._memory.open()
        return self._memory.add(self.used, value)

    def _inline_block(self, item: Item) -> PutBlock:
        assert item.footer is not None
        return PutBlock(
            meta=self._meta(item),
            source=self._memory.nothing,
            num_layers=1,
            version=item.version,
            piece_bytes=PIECE_BYTES,
            tail=b"".join((item.value.data, pack_footer(item.footer))),
            wanted=item.wanted,
        )

    def _whole_block(self, item: Item) -> PutBlock:
        return self._object_block(item, self._source(item))

    def _object_block(self, item: Item, source: Source) -> PutBlock:
        assert item.footer is not None
        return PutBlock(
            meta=self._meta(item),
            source=source,
            num_layers=num_pieces(source.ranges.length + FOOTER_BYTES, PIECE_BYTES),
            version=item.version,
            piece_bytes=PIECE_BYTES,
            tail=pack_footer(item.footer),
            wanted=item.wanted,
        )


def _part_of(source: Source, start: int, length: int) -> Source:
    ranges = Strided(offset=source.ranges.offset + start, row_bytes=length)
    return Source(region=source.region, ranges=ranges, generation=source.generation)
