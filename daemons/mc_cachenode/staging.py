"""Blocks of lower tiers on their way to a reader: brought into DRAM slots, one a block, that all its readers share.

A staged block is held until its last reader has let go or its time is over, and is then promoted or its slot freed.
Readers verify, so one that comes too late gets a miss at worst. Loop thread only; the tiers' workers fill the slots.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from daemons.core.errors import Exhausted, McError
from daemons.core.ids import BlockHash, StageId, new_stage_id, short
from daemons.mc_cachenode.replica import Replica
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.protocol.access import namespaces_of
from daemons.protocol.block import BlockLocation, Stage, StageReply
from daemons.protocol.segment import Grant
from daemons.rpc import Call, Loop, Timer
from daemons.store.lower import BlockRecord, LowerTier
from daemons.store.promotion import Promotion
from daemons.store.read_rate import ReadRate

log = logging.getLogger(__name__)

MAX_STAGES: Final = 4096
"""Holders at a time."""
_MAX_HOLD_S: Final = 600.0
_ANSWER_EARLY_S: Final = 0.05
"""So that what is there still arrives before the asker gives up."""
_POLL_S: Final = 0.05
_ROOMY: Final = 0.8
"""Below this part of the segment in use, what was read stays."""


class _NoSlot(Exhausted):
    """Until another reader lets go."""


class _NoSlotYet(_NoSlot):
    """Blocks of other sizes have the memory; some of them are on their way out."""


@dataclass(slots=True, eq=False)
class _Staged:
    """One block in one slot. `is_dropped`: deleted meanwhile, so it is not promoted."""

    replica: Replica
    record: BlockRecord
    holders: set[StageId] = field(default_factory=set)
    waiting: list["_Request"] = field(default_factory=list)
    is_filled: bool = False
    is_dropped: bool = False
    others: list[tuple[LowerTier, ReadRate]] = field(default_factory=list)
    """Slower tiers, for when this one fails."""


@dataclass(slots=True, eq=False)
class _Request:
    call: Call
    hashes: list[BlockHash]
    stage_id: StageId
    missing: set[BlockHash]
    """Still on their way, or wait for a slot."""
    hold_s: float
    wants_grants: bool = False
    why: str = ""
    timer: Timer | None = None


@dataclass(frozen=True, slots=True)
class StagingParts:
    """What staging works with. `locate` says where a slot is for readers; `on_promoted` hears of what stays."""

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
    locate: Callable[[Replica], BlockLocation]
    grant: Callable[[BlockLocation, float], Grant]
    """Opens one of those for so many seconds."""
    on_promoted: Callable[[BlockHash], object]
    make_room: Callable[[int, int], object] = lambda _length, _num_layers: None
    """For a slot of a block of so many bytes and layers, which blocks of other sizes take; at once or soon."""


class Staging:
    """Slots of blocks between the lower tiers and their readers."""

    def __init__(self, parts: StagingParts) -> None:
        self._parts = parts
        self._staged: dict[BlockHash, _Staged] = {}
        self._held: dict[StageId, tuple[list[BlockHash], Timer]] = {}
        self._ahead: set[StageId] = set()
        self._wanted: dict[BlockHash, list[_Request]] = {}
        """Wait for a slot that another reader holds, or that other blocks are about to leave."""
        self._is_polling = False
        parts.replicas.reserved_bytes = parts.limit_bytes if parts.lower else 0

    @property
    def used_bytes(self) -> int:
        return self._parts.replicas.staged_bytes

    @property
    def num_staged(self) -> int:
        return len(self._staged)

    def stage(self, call: Call, message: Stage) -> None:
        """Raises Exhausted when too many hold something."""
        hold_s = message.hold_ms / 1000
        missing, refused = self._hold(message.stage_id, message.hashes, hold_s)
        request = _Request(
            call, list(message.hashes), message.stage_id, missing, hold_s, message.wants_grants
        )
        for block_hash in missing:
            self._staged[block_hash].waiting.append(request)
        for block_hash, error in refused.items():
            request.why = error.message
            if isinstance(error, _NoSlot) and self._may_wait(request, error):
                self._wanted.setdefault(block_hash, []).append(request)
                missing.add(block_hash)
        if not missing:
            self._answer(request)
            return
        self._poll_later()
        left_s = call.deadline_s - self._parts.loop.clock() - _ANSWER_EARLY_S
        request.timer = self._parts.loop.call_later(max(0.0, left_s), self._answer, request)

    def stage_ahead(self, hashes: Sequence[BlockHash], hold_s: float) -> None:
        """For a reader that will come and hold them itself; best effort."""
        stage_id = new_stage_id()
        self._ahead.add(stage_id)
        try:
            self._hold(stage_id, hashes, hold_s)
        except Exhausted as error:
            log.debug("not staged ahead why=%s", error.message)
        if stage_id not in self._held:
            self._ahead.discard(stage_id)

    def unstage(self, stage_id: StageId) -> None:
        """Fine for one that is not known, or whose time is over."""
        self._ahead.discard(stage_id)
        held = self._held.pop(stage_id, None)
        if held is None:
            return
        hashes, timer = held
        timer.cancel()
        for block_hash in hashes:
            staged = self._staged.get(block_hash)
            if staged is not None and stage_id in staged.holders:
                staged.holders.discard(stage_id)
                self._end_if_free(staged)

    def drop(self, block_hash: BlockHash) -> bool:
        """It was deleted, or is bad: its readers may finish, but it does not stay. False when it is not here."""
        staged = self._staged.get(block_hash)
        if staged is None:
            return False
        staged.is_dropped = True
        return True

    def _hold(
        self, stage_id: StageId, hashes: Sequence[BlockHash], hold_s: float
    ) -> tuple[set[BlockHash], dict[BlockHash, McError]]:
        """Those on their way, and those that cannot come now."""
        if stage_id not in self._held and len(self._held) >= MAX_STAGES:
            raise Exhausted(f"{MAX_STAGES} readers hold staged blocks", retry_after_ms=100)
        missing: set[BlockHash] = set()
        held: list[BlockHash] = []
        refused: dict[BlockHash, McError] = {}
        for block_hash in dict.fromkeys(hashes):
            try:
                staged = self._find(block_hash)
            except McError as error:
                refused[block_hash] = error
                continue
            if staged is None:
                continue
            staged.holders -= self._ahead
            staged.holders.add(stage_id)
            held.append(block_hash)
            if not staged.is_filled:
                missing.add(block_hash)
        self._remember(stage_id, held, hold_s)
        return missing, refused

    def _poll_later(self) -> None:
        """Nobody says when blocks of other sizes have left enough room for a slot."""
        if self._wanted and not self._is_polling:
            self._is_polling = True
            self._parts.loop.call_later(_POLL_S, self._poll)

    def _poll(self) -> None:
        self._is_polling = False
        self._retry_wanted()
        self._poll_later()

    def _may_wait(self, request: _Request, why: _NoSlot) -> bool:
        """Others hold slots that they will let go; a reader never waits for its own."""
        if isinstance(why, _NoSlotYet):
            return True
        own = self._held.get(request.stage_id)
        return len(self._staged) > (0 if own is None else len(own[0]))

    def _retry_wanted(self) -> None:
        """A slot is free again: the one that waits longest comes first."""
        for block_hash in list(self._wanted):
            requests = self._wanted[block_hash]
            try:
                staged = self._find(block_hash)
            except _NoSlot:
                return
            except McError as error:
                staged = None
                requests[0].why = error.message
            del self._wanted[block_hash]
            for request in requests:
                if staged is None or staged.is_filled:
                    request.missing.discard(block_hash)
                if staged is not None:
                    staged.holders.add(request.stage_id)
                    self._remember(request.stage_id, [block_hash], request.hold_s)
                    if not staged.is_filled:
                        staged.waiting.append(request)
                if not request.missing:
                    self._answer(request)

    def _remember(self, stage_id: StageId, held: list[BlockHash], hold_s: float) -> None:
        known = self._held.pop(stage_id, None)
        if known is not None:
            known[1].cancel()
            held = list(dict.fromkeys([*known[0], *held]))
        if held:
            hold_s = min(max(0.0, hold_s), _MAX_HOLD_S)
            timer = self._parts.loop.call_later(hold_s, self.unstage, stage_id)
            self._held[stage_id] = held, timer

    def _find(self, block_hash: BlockHash) -> _Staged | None:
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

    def _begin_from_fastest(self, block_hash: BlockHash) -> _Staged | None:
        """A tier that rests or has enough to do leaves it to the next one."""
        refused: McError | None = None
        for at, tier in enumerate(self._parts.lower):
            record = tier.get(block_hash)
            if record is None:
                continue
            try:
                staged = self._begin(tier, self._parts.rates[at], record)
            except _NoSlot:
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

    def _begin(self, tier: LowerTier, rate: ReadRate, record: BlockRecord) -> _Staged:
        parts = self._parts
        block_hash = record.meta.hash
        is_beyond = self.used_bytes + record.stored_bytes > parts.limit_bytes
        if is_beyond and not self._has_room():
            raise _NoSlot(
                "the slots for staged blocks are all held; raise ssd.stage", retry_after_ms=50
            )
        replica = self._slot(record)
        staged = _Staged(replica, record)
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
        """Raises _NoSlotYet."""

        def begin() -> Replica:
            return self._parts.replicas.begin_staged(
                record.meta, record.length, record.num_layers, version=record.version
            )

        try:
            return begin()
        except Exhausted:
            self._parts.make_room(record.length, record.num_layers)
        try:
            return begin()
        except Exhausted as error:
            raise _NoSlotYet(error.message, retry_after_ms=50) from None

    def _read(self, staged: _Staged, tier: LowerTier, rate: ReadRate) -> None:
        """Raises Exhausted, Unavailable."""
        parts = self._parts
        slot = parts.replicas.stored(staged.replica)
        reading = tier.submit_read(staged.record.meta.hash, slot, reader="stage")
        rate.begin(parts.loop.clock())
        reading.add_done_callback(
            lambda future: parts.loop.call_soon_threadsafe(self._on_read, staged, rate, future)
        )

    def _read_elsewhere(self, staged: _Staged) -> bool:
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

    def _on_read(self, staged: _Staged, rate: ReadRate, done: "Future[None]") -> None:
        error = done.exception()
        rate.end(0 if error else staged.record.stored_bytes, self._parts.loop.clock())
        if error is not None and self._read_elsewhere(staged):
            return
        staged.is_filled = error is None
        waiting, staged.waiting = staged.waiting, []
        if error is not None:
            log.warning("block not staged block=%s why=%s", short(staged.record.meta.hash), error)
            staged.is_dropped = True
            staged.holders.clear()
        for request in waiting:
            if error is not None:
                request.why = str(error)
            request.missing.discard(staged.record.meta.hash)
            if not request.missing:
                self._answer(request)
        if error is not None:
            self._end(staged)
        else:
            self._end_if_free(staged)

    def _answer(self, request: _Request) -> None:
        if request.timer is not None:
            request.timer.cancel()
        own = namespaces_of(request.call.owner)
        locations = [self._location(block_hash, own) for block_hash in request.hashes]
        grants = []
        if request.wants_grants:
            grants = [self._parts.grant(at, request.hold_s) for at in locations if at is not None]
        request.call.reply(StageReply(locations=locations, why=request.why[:500], grants=grants))
        for block_hash in request.missing:
            staged = self._staged.get(block_hash)
            if staged is not None and request in staged.waiting:
                staged.waiting.remove(request)
            requests = self._wanted.get(block_hash, [])
            if request in requests:
                requests.remove(request)
                if not requests:
                    del self._wanted[block_hash]

    def _location(
        self, block_hash: BlockHash, own: frozenset[bytes] | None
    ) -> BlockLocation | None:
        """None for what is not here, or not in one of these namespaces."""
        staged = self._staged.get(block_hash)
        if staged is not None:
            replica, is_here = staged.replica, staged.is_filled
        else:
            found = self._parts.replicas.get(block_hash)
            if found is None:
                return None
            replica, is_here = found, found.state == "sealed"
        is_foreign = own is not None and replica.meta.namespace not in own
        return self._parts.locate(replica) if is_here and not is_foreign else None

    def _end_if_free(self, staged: _Staged) -> None:
        if staged.is_filled and not staged.holders:
            self._end(staged)

    def _end(self, staged: _Staged) -> None:
        """Promote it or free its slot."""
        parts = self._parts
        block_hash = staged.record.meta.hash
        del self._staged[block_hash]
        parts.replicas.staged_bytes -= staged.record.stored_bytes
        has_room = self._has_room()
        if staged.is_dropped or not parts.promotion.admits(block_hash, has_room=has_room):
            parts.replicas.abandon(staged.replica)
        else:
            created_ms = round(staged.record.created_s * 1000)
            parts.replicas.seal(staged.replica, staged.record.seal_checksum, created_ms=created_ms)
            parts.on_promoted(block_hash)
        self._retry_wanted()
