"""What an SSD tier is told, and what it counts."""

from dataclasses import dataclass

from daemons.core.errors import ConfigError
from daemons.core.units import GIB, MIB, format_size
from daemons.store.lower.state import TierCounters
from daemons.store.ssd.files import ALIGN

MIN_BUCKETS = 4
MIN_BUCKET_BYTES = 10 * ALIGN
"""The largest record of deletes fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SsdSettings:
    """Bounds of one tier."""

    capacity_bytes: int
    bucket_bytes: int = 256 * MIB
    commit_delay_s: float = 0.002
    """A put waits at most so long for others to share its sync."""
    batch_bytes: int = 16 * MIB
    """Written with one sync; a put that would make more of it waits for the next."""
    max_queued_bytes: int = 256 * MIB
    """Beyond it a put is refused: a slow disk must not hold the DRAM of everything that waits for it."""
    read_workers: int = 4
    max_queued_reads: int = 1024
    kept_fraction: float = 0.5
    """Of a bucket that is evicted, at most so much that was read since is written again."""
    rest_s: float = 5.0
    """After the disk failed, puts are refused for so long before it is tried again."""

    @property
    def delete_log_bytes(self) -> int:
        """Of the capacity, set aside for the second home of tombstones."""
        return max(4 * ALIGN, self.bucket_bytes // 64 // ALIGN * ALIGN)

    def __post_init__(self) -> None:
        if self.bucket_bytes % ALIGN or not MIN_BUCKET_BYTES <= self.bucket_bytes < 4 * GIB:
            raise ConfigError(
                f"a bucket of {self.bucket_bytes} bytes: give a multiple of {ALIGN} "
                f"from {MIN_BUCKET_BYTES} to below 4GiB"
            )
        if self.capacity_bytes < MIN_BUCKETS * self.bucket_bytes:
            raise ConfigError(
                f"an SSD capacity of {format_size(self.capacity_bytes)} holds less than {MIN_BUCKETS} buckets of "
                f"{format_size(self.bucket_bytes)}; raise it, or make the buckets smaller"
            )


@dataclass(slots=True)
class SsdCounters(TierCounters):
    """Bytes put are those of records, so with headers and padding."""

    commits: int = 0
    reclaimed_buckets: int = 0
    damaged_bytes: int = 0
    torn_bytes: int = 0
    torn_records: int = 0
    scanned_buckets: int = 0
    """Without a footer at the start: after a crash, or of an earlier version."""
