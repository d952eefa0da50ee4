"""What an object tier is told, and what it counts."""

from dataclasses import dataclass

from daemons.core.errors import ConfigError
from daemons.core.units import GIB, KIB, MIB, format_size
from daemons.store.lower.state import TierCounters

MIN_PARTS = 8
MIN_PART_BYTES = 64 * KIB
MAX_PART_BYTES = 2 * GIB
MAX_PART_BLOCKS = 8192
"""Its manifest is read and written whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """Bounds of one tier. A part is one object of blocks, beside which lies its manifest."""

    capacity_bytes: int
    part_bytes: int = 32 * MIB
    commit_delay_s: float = 0.5
    """A put waits at most so long for others to fill the part."""
    max_queued_parts: int = 6
    """Beyond it a put is refused: a slow store must not hold the DRAM of everything that waits for it."""
    uploads: int = 4
    """Parts that are written at a time, when so many are full."""
    read_workers: int = 8
    max_queued_reads: int = 1024
    rest_s: float = 1.0
    """After a failure the store is left alone for so long, after each further one for twice as long."""
    max_rest_s: float = 60.0
    close_s: float = 3.0
    """What waits when the tier is closed has so long to get there."""

    @property
    def max_queued_bytes(self) -> int:
        return self.max_queued_parts * self.part_bytes

    def __post_init__(self) -> None:
        if not MIN_PART_BYTES <= self.part_bytes <= MAX_PART_BYTES:
            raise ConfigError(
                f"an object of {format_size(self.part_bytes)}: give object.part a size from "
                f"{format_size(MIN_PART_BYTES)} to {format_size(MAX_PART_BYTES)}"
            )
        if self.capacity_bytes < MIN_PARTS * self.part_bytes:
            raise ConfigError(
                f"an object.capacity of {format_size(self.capacity_bytes)} holds less than {MIN_PARTS} objects of "
                f"{format_size(self.part_bytes)}; raise it, or make object.part smaller"
            )


@dataclass(slots=True)
class ObjectCounters(TierCounters):
    """Parts are objects of the store."""

    parts_written: int = 0
    parts_removed: int = 0
    damaged_manifests: int = 0
