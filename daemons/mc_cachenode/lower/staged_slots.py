"""DRAM slots that blocks of lower tiers are read into, one a block, whoever wants it.

A slot is asked for with `find`, filled by the tier's workers, and given up with `end`: then the block is promoted or
its slot freed. Loop thread only.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from daemons.core.errors import Exhausted, McError
from daemons.core.ids import BlockHash, StageId, short
from daemons.mc_cachenode.replica import Replica
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.rpc import Loop
from daemons.store.lower import BlockRecord, LowerTier
from daemons.store.promotion import Promotion
from daemons.store.read_rate import ReadRate

log = logging.getLogger(__name__)

_ROOMY: Final = 0.8
"""Below this part of the segment in use, what was read stays."""


class NoSlot(Exhausted):
    """Until another reader lets go."""


class NoSlotYet(NoSlot):
    """Blocks of other sizes have the memory; some of them are on their way out."""


@dataclass(slots=True, eq=False)
class Staged:
    """One block in one slot. `is_dropped`: deleted meanwhile, so it is not promoted."""

    replica: Replica
    record: BlockRecord
    holders: set[StageId] = field(default_factory=set)
    is_filled: bool = False
    is_dropped: bool = False
    others: list[tuple[LowerTier, ReadRate]] = field(default_factory=list)
    """Slower tiers, for when this one fails."""


@dataclass(frozen=True, slots=True)
class SlotParts:
    """What slots are filled from. `on_promoted` hears of what stays in DRAM."""

    loop: Loop
    replicas: ReplicaTable
    lower: Sequence[LowerTier]
    rates: Sequence[ReadRate]
    """One for each of them."""
    promotion: Promotion
    limit_bytes: int
    """Beyond it only what DRAM has room for anyway."""
    keep: Callable[[BlockHash], object]
    """Called with what is to be read in DRAM, and might be leaving it."""
    on_promoted: Callable[[BlockHash], object]
    make_room: Callable[[int, int], object] = lambda _length, _num_layers: None
    """For a slot of a block of so many bytes and layers, which blocks of other sizes take; at once or soon."""


class StagedSlots:
    """By block. `on_read` is called once for each that `find` has begun: with None, or why no tier could read it."""

    def __init__(self, parts: SlotParts) -> None:
        self._parts = parts
        self._staged: dict[BlockHash, Staged] = {}
        self.on_read: Callable[[Staged, BaseException | None], object] = lambda _staged, _error: (
            None
        )
        parts.replicas.reserved_bytes = parts.limit_bytes if parts.lower else 0

    def __len__(self) -> int:
        return len(self._staged)

    @property
    def used_bytes(self) -> int:
        return self._parts.replicas.staged_bytes

    def get(self, block_hash: BlockHash) -> Staged | None:
        """One that has a slot, filled or not."""
        return self._staged.get(block_hash)

    def readable(self, block_hash: BlockHash) -> Replica | None:
        """Where it can be read now: in its slot, or in DRAM to stay."""
        staged = self._staged.get(block_hash)
        if staged is not None:
            return staged.replica if staged.is_filled else None
        replica = self._parts.replicas.get(block_hash)
        return replica if replica is not None and replica.state == "sealed" else None

    def find(self, block_hash: BlockHash) -> Staged | None:
        """None for one that needs no staging, or is not here. Raises Exhausted, Unavailable."""
        replica = self._parts.replicas.get(block_hash)
        if replica is not None and replica.state == "sealed":
            self._parts.replicas.touch(block_hash)
            self._parts.keep(block_hash)
            return None
        staged = self._staged.get(block_hash)
        if staged is not None:
            self._parts.promotion.use(block_hash)
            return staged
        return None if replica is not None else self._begin_from_fastest(block_hash)

    def end(self, staged: Staged) -> None:
        """Promote it or free its slot."""
        parts = self._parts
        block_hash = staged.record.meta.hash
        del self._staged[block_hash]
        parts.replicas.staged_bytes -= staged.record.stored_bytes
        has_room = self._has_room()
        is_guest = staged.replica.segment.slots.is_roomy(staged.replica.offset)
        if (
            is_guest
            or staged.is_dropped
            or not parts.promotion.admits(block_hash, has_room=has_room)
        ):
            parts.replicas.abandon(staged.replica)
        else:
            created_ms = round(staged.record.created_s * 1000)
            parts.replicas.seal(staged.replica, staged.record.seal_checksum, created_ms=created_ms)
            parts.on_promoted(block_hash)

    def _begin_from_fastest(self, block_hash: BlockHash) -> Staged | None:
        """A tier that rests or has enough to do leaves it to the next one."""
        refused: McError | None = None
        for at, tier in enumerate(self._parts.lower):
            record = tier.get(block_hash)
            if record is None:
                continue
            try:
                staged = self._begin(tier, self._parts.rates[at], record)
            except NoSlot:
                raise
            except McError as error:
                refused = refused or error
            else:
                below = zip(self._parts.lower, self._parts.rates, strict=True)
                staged.others.extend(list(below)[at + 1 :])
                return staged
        if refused is not None:
            raise refused
        return None

    def _begin(self, tier: LowerTier, rate: ReadRate, record: BlockRecord) -> Staged:
        parts = self._parts
        block_hash = record.meta.hash
        is_beyond = self.used_bytes + record.stored_bytes > parts.limit_bytes
        if is_beyond and not self._has_room():
            raise NoSlot(
                "the slots for staged blocks are all held; raise ssd.stage", retry_after_ms=50
            )
        replica = self._slot(record)
        staged = Staged(replica, record)
        try:
            self._read(staged, tier, rate)
        except McError:
            parts.replicas.abandon(replica)
            raise
        replica.seal_checksum = record.seal_checksum
        self._staged[block_hash] = staged
        parts.replicas.staged_bytes += record.stored_bytes
        parts.promotion.use(block_hash)
        return staged

    def _slot(self, record: BlockRecord) -> Replica:
        """One of its size; while blocks of other sizes leave for that, any that is large enough. Raises NoSlotYet."""
        parts = self._parts
        what = record.meta, record.length, record.num_layers
        with contextlib.suppress(Exhausted):
            return parts.replicas.begin_staged(*what, version=record.version)
        parts.make_room(record.length, record.num_layers)
        with contextlib.suppress(Exhausted):
            return parts.replicas.begin_staged(*what, version=record.version)
        try:
            return parts.replicas.begin_roomy(*what, version=record.version)
        except Exhausted as error:
            raise NoSlotYet(error.message, retry_after_ms=50) from None

    def _read(self, staged: Staged, tier: LowerTier, rate: ReadRate) -> None:
        """Raises Exhausted, Unavailable."""
        parts = self._parts
        slot = parts.replicas.stored(staged.replica)
        reading = tier.submit_read(staged.record.meta.hash, slot, reader="stage")
        rate.begin(parts.loop.clock())
        reading.add_done_callback(
            lambda future: parts.loop.call_soon_threadsafe(self._on_read, staged, rate, future)
        )

    def _read_elsewhere(self, staged: Staged) -> bool:
        """The same bytes from a slower tier."""
        while staged.others and not staged.is_dropped:
            tier, rate = staged.others.pop(0)
            if tier.get(staged.record.meta.hash) == staged.record:
                try:
                    self._read(staged, tier, rate)
                except McError as error:
                    log.debug("not read either why=%s", error.message)
                else:
                    return True
        return False

    def _has_room(self) -> bool:
        """Nobody has to leave yet."""
        used_bytes, capacity_bytes = self._parts.replicas.usage()
        return used_bytes < _ROOMY * capacity_bytes

    def _on_read(self, staged: Staged, rate: ReadRate, done: "Future[None]") -> None:
        error = done.exception()
        rate.end(0 if error else staged.record.stored_bytes, self._parts.loop.clock())
        if error is not None and self._read_elsewhere(staged):
            return
        staged.is_filled = error is None
        if error is not None:
            log.warning("block not staged block=%s why=%s", short(staged.record.meta.hash), error)
            staged.is_dropped = True
        self.on_read(staged, error)
