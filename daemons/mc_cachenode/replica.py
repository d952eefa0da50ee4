"""One block in one slot of a segment of this node: what the node knows of it."""

import time
from dataclasses import dataclass
from typing import Literal

from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.protocol.segment import told_offset
from daemons.store.index.format import SealedRecord
from daemons.store.segment.seal import trailer_length
from daemons.store.segment.segment import Segment

VERSION = 1
"""Of a content-hashed block: its bytes never change, so neither does this."""


@dataclass(slots=True, eq=False)
class Replica:
    """One block in one slot; the payload, then the trailer."""

    meta: BlockMeta
    segment: Segment
    offset: int
    length: int
    num_layers: int
    state: Literal["writing", "sealed", "gone"] = "writing"
    seal_checksum: int = 0
    created_ms: int = 0
    """When it was sealed, since 1970; kept over restarts and in lower tiers."""
    version: int = VERSION
    num_holds: int = 0
    wanted: int = 0
    """Replicas it should have; 0: as many as the pool wants."""

    @property
    def trailer_bytes(self) -> int:
        return trailer_length(self.num_layers)

    @property
    def payload(self) -> memoryview:
        return self.segment.view[self.offset : self.offset + self.length]

    @property
    def packed_trailer(self) -> memoryview:
        start = self.offset + self.length
        return self.segment.view[start : start + self.trailer_bytes]

    def told(self, age_ms: int) -> SealedBlock:
        """What the master hears: offsets of one node are of all its segments."""
        return self._describe(told_offset(self.segment.number, self.offset), age_ms)

    def describe(self) -> SealedBlock:
        """For the index of its segment, which keeps the time itself."""
        return self._describe(self.offset, 0)

    def _describe(self, offset: int, age_ms: int) -> SealedBlock:
        return SealedBlock(
            meta=self.meta,
            offset=offset,
            length=self.length,
            trailer_bytes=self.trailer_bytes,
            version=self.version,
            seal_checksum=self.seal_checksum,
            num_layers=self.num_layers,
            age_ms=age_ms,
            wanted=self.wanted,
        )


def wall_ms() -> int:
    """Since 1970: the one clock that goes on while a node is away."""
    return time.time_ns() // 1_000_000


def replica_of(record: SealedRecord, segment: Segment) -> Replica:
    """As an earlier process sealed it in this segment."""
    block = record.block
    return Replica(
        meta=block.meta,
        segment=segment,
        offset=block.offset,
        length=block.length,
        num_layers=block.num_layers,
        state="sealed",
        seal_checksum=block.seal_checksum,
        created_ms=record.created_ms,
        version=block.version,
        wanted=block.wanted,
    )
