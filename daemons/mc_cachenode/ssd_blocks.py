"""This node's SSD tier as the rest of the node sees it: opened from the config, written, deleted, told to the master.

Loop thread only; the tier's own threads do the work and come back through the loop.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from daemons.config.common import size_bytes
from daemons.config.mc_cachenode import SsdSection
from daemons.core.errors import ConfigError
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_cachenode.replicas import ReplicaTable, wall_ms
from daemons.mc_cachenode.write_down import FlushModes, WriteDown, WriteDownCallbacks
from daemons.protocol.block import DeadName, SealedBlock, Tier, Tombstone
from daemons.rpc import Loop
from daemons.store.ssd import BlockRecord, DiskDirectory, SsdSettings, SsdTier

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SsdCallbacks:
    """Loop thread. `on_sealed` and `on_freed` (hash, is_bad) are of the SSD, `free` (hash, why) of DRAM."""

    on_sealed: Callable[[BlockHash], object]
    on_freed: Callable[[BlockHash, bool], object]
    on_not_written: Callable[[int], object]
    free: Callable[[BlockHash, str], object]


def open_tier(
    config: SsdSection, node: NodeId, on_dropped: Callable[[Sequence[BlockHash], str], object]
) -> SsdTier | None:
    """With all that is on the disk; None without a directory. Raises ConfigError."""
    if not config.directory:
        return None
    settings = SsdSettings(
        capacity_bytes=size_bytes(config.capacity, "ssd.capacity"),
        bucket_bytes=size_bytes(config.bucket, "ssd.bucket"),
        read_workers=config.read_workers,
    )
    path = Path(config.directory) / node.replace("/", "_")
    try:
        return SsdTier(DiskDirectory(path), settings, on_dropped=on_dropped)
    except OSError as error:
        raise ConfigError(
            f"ssd.directory {path}: {error.strerror or error}; mend it, or take [ssd] out of the config"
        ) from error


class SsdBlocks:
    """The reported tier, and what is done to it. `start` begins writing."""

    tier: Tier = "ssd"

    def __init__(
        self,
        loop: Loop,
        replicas: ReplicaTable,
        ssd: SsdTier,
        modes: FlushModes,
        callbacks: SsdCallbacks,
    ) -> None:
        self.ssd = ssd
        self._loop = loop
        self._callbacks = callbacks
        self.write_down = WriteDown(
            loop,
            replicas,
            ssd,
            modes,
            WriteDownCallbacks(callbacks.on_sealed, callbacks.on_not_written, callbacks.free),
        )

    def hashes(self) -> list[BlockHash]:
        return self.ssd.hashes()

    def report(self, hashes: Iterable[BlockHash]) -> list[SealedBlock]:
        now_ms = wall_ms()
        found = (self.ssd.get(block_hash) for block_hash in hashes)
        return [_described(record, now_ms) for record in found if record is not None]

    def usage(self) -> tuple[int, int]:
        return self.ssd.used_bytes, self.ssd.settings.capacity_bytes

    def flush(self) -> None:
        """A block is told only once it is on disk."""

    def tombstones(self) -> list[Tombstone]:
        return []

    def dead_names(self) -> list[DeadName]:
        return []

    def delete_dead(self, block_hash: BlockHash, version: int) -> None:
        """Of an object: this version and older ones."""
        record = self.ssd.get(block_hash)
        if record is not None and record.version <= version:
            self.delete([block_hash])

    def delete(self, hashes: Sequence[BlockHash]) -> None:
        """Gone at once for readers; told to the master when a loss of power would not bring them back."""
        told = list(hashes)
        self.ssd.delete(told).add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._on_deleted, told, done)
        )

    def on_dropped(self, hashes: Sequence[BlockHash], why: str) -> None:
        """Any thread: the tier gave these up, for space or for being bad."""
        self._loop.call_soon_threadsafe(self._on_dropped, list(hashes), why)

    def close(self) -> None:
        self.ssd.close()

    def _on_deleted(self, hashes: list[BlockHash], done: "Future[bool]") -> None:
        error = done.exception()
        if error is not None:
            # They stay deleted while this process lives; the clear that the index remembers holds after it.
            log.error("ssd deletes not on disk yet num=%d why=%s", len(hashes), error)
        for block_hash in hashes:
            self._callbacks.on_freed(block_hash, False)

    def _on_dropped(self, hashes: list[BlockHash], why: str) -> None:
        for block_hash in hashes:
            if self.ssd.get(block_hash) is None:  # or it was written again meanwhile
                self._callbacks.on_freed(block_hash, why == "bad")


def _described(record: BlockRecord, now_ms: int) -> SealedBlock:
    return SealedBlock(
        meta=record.meta,
        offset=0,
        length=record.length,
        trailer_bytes=record.trailer_bytes,
        version=record.version,
        seal_checksum=record.seal_checksum,
        num_layers=record.num_layers,
        age_ms=max(0, now_ms - round(record.created_s * 1000)),
    )
