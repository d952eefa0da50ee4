"""A tier below DRAM as the rest of the node sees it: written, deleted, told to the master.

Loop thread only; the tier's own threads do the work and come back through the loop.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from daemons.core.errors import Unavailable
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_cachenode.lower.copy_down import CopyDown
from daemons.mc_cachenode.lower.lower_tiers import OpenedTier
from daemons.mc_cachenode.lower.write_down import WriteDown, WriteDownCallbacks
from daemons.mc_cachenode.replica import wall_ms
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.protocol.block import DeadName, SealedBlock, Tombstone
from daemons.rpc import Loop
from daemons.store.index.format import DeadRecord
from daemons.store.lower import BlockRecord, LowerTier
from daemons.store.lower.waiting import begun, fail
from daemons.store.read_rate import ReadRate

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LowerCallbacks:
    """Loop thread. `on_sealed` and `on_freed` (hash, is_bad) are of the tier, `free` (hash, why) of DRAM."""

    on_sealed: Callable[[BlockHash], object]
    on_freed: Callable[[BlockHash, bool], object]
    on_not_written: Callable[[int], object]
    free: Callable[[BlockHash, str], object]


class LowerBlocks:
    """The reported tier, and what is done to it."""

    def __init__(
        self,
        loop: Loop,
        replicas: ReplicaTable,
        opened: OpenedTier,
        callbacks: LowerCallbacks,
    ) -> None:
        self.tier = opened.tier
        self.store = opened.store
        self.rate = ReadRate()
        self.is_known = opened.store.is_open
        """Whether the master is told, or about to be, what was here at the start."""
        self._modes = opened.modes
        self._adopter = opened.adopter
        self._loop = loop
        self._callbacks = callbacks
        self.write_down = WriteDown(
            loop,
            replicas,
            opened.store,
            opened.modes,
            WriteDownCallbacks(callbacks.on_sealed, callbacks.on_not_written, callbacks.free),
        )

    def take_from(self, above: LowerTier) -> None:
        """Blocks come from DRAM and from this tier, once it runs out of space; call it before the loop runs."""
        copy_down = CopyDown(self._loop, above, self.store, self._modes, self._callbacks.on_sealed)
        self.write_down.copy_down = copy_down
        copy_down.start()

    def hashes(self) -> list[BlockHash]:
        return self.store.hashes()

    def report(self, hashes: Iterable[BlockHash]) -> list[SealedBlock]:
        now_ms = wall_ms()
        found = (self.store.get(block_hash) for block_hash in hashes)
        return [_described(record, now_ms) for record in found if record is not None]

    def usage(self) -> tuple[int, int]:
        return self.store.used_bytes, self.store.capacity_bytes

    def read_bytes_per_s(self) -> int:
        return self.rate.bytes_per_s

    def flush(self) -> None:
        """A block is told only once it is there to stay."""

    def tombstones(self) -> list[Tombstone]:
        return []

    def dead_names(self) -> list[DeadName]:
        return []

    def forget(self, names: Sequence[DeadRecord]) -> "Future[bool]":
        """Of objects: these versions and older ones. Done when no loss of memory brings them back."""
        held = [(name, self.store.get(name.key)) for name in names]
        told = [n.key for n, record in held if record is not None and record.version <= n.version]
        try:
            done = self.store.forget(names)
        except Unavailable as error:  # its writer met a bug
            done = begun()
            fail(done, error)
        if told:
            done.add_done_callback(
                lambda done: self._loop.call_soon_threadsafe(self._on_deleted, told, done)
            )
        return done

    def delete(self, hashes: Sequence[BlockHash]) -> None:
        """Gone at once for readers; told to the master when no start would bring them back."""
        told = list(hashes)
        self.store.delete(told).add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._on_deleted, told, done)
        )

    def adopt(self, nodes: Sequence[NodeId]) -> None:
        """Read what these nodes, which are away, have in this tier; fine where it is a tier of this node alone."""
        if self._adopter is not None:
            self._adopter.adopt(nodes)

    def on_dropped(self, hashes: Sequence[BlockHash], why: str) -> None:
        """Any thread: the tier gave these up, for space or for being bad."""
        self._loop.call_soon_threadsafe(self._on_dropped, list(hashes), why)

    def on_found(self, hashes: Sequence[BlockHash]) -> None:
        """Any thread: the tier has just learned that it has these."""
        self._loop.call_soon_threadsafe(self._on_found, list(hashes))

    def close(self) -> None:
        self.store.close()

    def _on_found(self, hashes: list[BlockHash]) -> None:
        self.is_known = True
        for block_hash in hashes:
            self._callbacks.on_sealed(block_hash)

    def _on_deleted(self, hashes: list[BlockHash], done: "Future[bool]") -> None:
        error = done.exception()
        if error is not None:
            # They stay deleted while this process lives; the clear that the index remembers holds after it.
            log.error(
                "deletes not there to stay yet tier=%s num=%d why=%s", self.tier, len(hashes), error
            )
        for block_hash in hashes:
            self._callbacks.on_freed(block_hash, False)

    def _on_dropped(self, hashes: list[BlockHash], why: str) -> None:
        for block_hash in hashes:
            if self.store.get(block_hash) is None:  # or it was written again meanwhile
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
