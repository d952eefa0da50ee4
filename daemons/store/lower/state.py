"""What a tier's callers, its readers and its writer all touch, and what the two kinds of tier are told and count."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, Protocol

from daemons.core.clock import Clock
from daemons.core.ids import BlockHash
from daemons.store.lower.health import TierHealth

Why = Literal["evicted", "bad"]
OnDropped = Callable[[Sequence[BlockHash], Why], object]


class Bounds(Protocol):
    """What every tier's settings say."""

    @property
    def capacity_bytes(self) -> int: ...

    @property
    def max_queued_bytes(self) -> int:
        """Beyond it a put is refused."""

    @property
    def read_workers(self) -> int: ...

    @property
    def max_queued_reads(self) -> int: ...


@dataclass(slots=True)
class TierCounters:
    """Since the tier was opened."""

    put_blocks: int = 0
    put_bytes: int = 0
    copied_blocks: int = 0
    copied_bytes: int = 0
    """Written again by eviction and compaction: (put + copied) / put is the write amplification."""
    read_blocks: int = 0
    read_bytes: int = 0
    deleted_blocks: int = 0
    evicted_blocks: int = 0
    bad_blocks: int = 0
    """Failed their checksum, or were not there, and were dropped."""
    read_errors: int = 0
    write_errors: int = 0
    refused_puts: int = 0
    recovered_blocks: int = 0

    def as_dict(self) -> dict[str, int]:
        return {counter.name: getattr(self, counter.name) for counter in fields(self)}


@dataclass(slots=True)
class TierState:
    """`lock` guards the rest but the clock."""

    clock: Clock
    health: TierHealth
    """Of its writes."""
    read_health: TierHealth
    """What is full or cannot be written may well be read."""
    lock: threading.Condition = field(default_factory=threading.Condition)
    is_closed: bool = False


def ignore(*_: object) -> None:
    """For callbacks that nobody needs."""
