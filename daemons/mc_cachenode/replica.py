"""One block in one slot of this node's segment: what the node knows of it."""

import time
from dataclasses import dataclass
from typing import Literal

from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.store.index_format import SealedRecord
from daemons.store.seal import trailer_length

VERSION = 1
"""Of a content-hashed block: its bytes never change, so neither does this."""


@dataclass(slots=True, eq=False)
class Replica:
    """One block in one slot; the payload, then the trailer."""

    meta: BlockMeta
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

    def describe(self, age_ms: int = 0) -> SealedBlock:
        """What the master is told; the index keeps the time itself."""
        return SealedBlock(
            meta=self.meta,
            offset=self.offset,
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


def replica_of(record: SealedRecord) -> Replica:
    """As an earlier process sealed it."""
    block = record.block
    return Replica(
        meta=block.meta,
        offset=block.offset,
        length=block.length,
        num_layers=block.num_layers,
        state="sealed",
        seal_checksum=block.seal_checksum,
        created_ms=record.created_ms,
        version=block.version,
        wanted=block.wanted,
    )
