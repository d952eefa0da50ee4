"""Readers of blocks that are on their way from lower tiers: who waits for which slot, and who holds it for how long.

A staged block is held until its last reader has let go or its time is over. Readers verify, so one that comes too late
gets a miss at worst. Loop thread only.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from daemons.core.errors import Exhausted, McError
from daemons.core.ids import BlockHash, StageId, new_stage_id
from daemons.mc_cachenode.lower.staged_slots import NoSlot, NoSlotYet, Staged, StagedSlots
from daemons.mc_cachenode.replica import Replica
from daemons.protocol.access import namespaces_of
from daemons.protocol.block import BlockLocation
from daemons.protocol.segment import Grant
from daemons.protocol.tiers import Stage, StageReply
from daemons.rpc import Call, Loop, Timer

log = logging.getLogger(__name__)

MAX_STAGES: Final = 4096
"""Holders at a time."""
_MAX_HOLD_S: Final = 600.0
_POLL_S: Final = 0.05


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


class Staging:
    """Takes Stage and Unstage."""

    def __init__(
        self,
        loop: Loop,
        slots: StagedSlots,
        locate: Callable[[Replica], BlockLocation],
        grant: Callable[[BlockLocation, float], Grant],
    ) -> None:
        """`locate` says where a slot is for readers; `grant` opens such a place for so many seconds."""
        self._loop = loop
        self._slots = slots
        self._locate = locate
        self._grant = grant
        self._held: dict[StageId, tuple[list[BlockHash], Timer]] = {}
        self._ahead: set[StageId] = set()
        self._waiting: dict[BlockHash, list[_Request]] = {}
        """For a slot to be filled."""
        self._wanted: dict[BlockHash, list[_Request]] = {}
        """Wait for a slot that another reader holds, or that other blocks are about to leave."""
        self._is_polling = False
        slots.on_read = self._on_read

    @property
    def used_bytes(self) -> int:
        return self._slots.used_bytes

    @property
    def num_staged(self) -> int:
        return len(self._slots)

    def stage(self, call: Call, message: Stage) -> None:
        """Raises Exhausted when too many hold something."""
        hold_s = message.hold_ms / 1000
        missing, refused = self._hold(message.stage_id, message.hashes, hold_s)
        request = _Request(
            call, list(message.hashes), message.stage_id, missing, hold_s, message.wants_grants
        )
        for block_hash in missing:
            self._waiting.setdefault(block_hash, []).append(request)
        for block_hash, error in refused.items():
            request.why = error.message
            if isinstance(error, NoSlot) and self._may_wait(request, error):
                self._wanted.setdefault(block_hash, []).append(request)
                missing.add(block_hash)
        if not missing:
            self._answer(request)
            return
        self._poll_later()
        left_s = call.answer_by_s - self._loop.clock()
        request.timer = self._loop.call_later(max(0.0, left_s), self._answer, request)

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
            staged = self._slots.get(block_hash)
            if staged is not None and stage_id in staged.holders:
                staged.holders.discard(stage_id)
                self._end_if_free(staged)

    def drop(self, block_hash: BlockHash) -> bool:
        """It was deleted, or is bad: its readers may finish, but it does not stay. False when it is not here."""
        staged = self._slots.get(block_hash)
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
                staged = self._slots.find(block_hash)
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
            self._loop.call_later(_POLL_S, self._poll)

    def _poll(self) -> None:
        self._is_polling = False
        self._retry_wanted()
        self._poll_later()

    def _may_wait(self, request: _Request, why: NoSlot) -> bool:
        """Others hold slots that they will let go; a reader never waits for its own."""
        if isinstance(why, NoSlotYet):
            return True
        own = self._held.get(request.stage_id)
        return len(self._slots) > (0 if own is None else len(own[0]))

    def _retry_wanted(self) -> None:
        """A slot is free again: the one that waits longest comes first."""
        for block_hash in list(self._wanted):
            requests = self._wanted[block_hash]
            try:
                staged = self._slots.find(block_hash)
            except NoSlot:
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
                        self._waiting.setdefault(block_hash, []).append(request)
                if not request.missing:
                    self._answer(request)

    def _remember(self, stage_id: StageId, held: list[BlockHash], hold_s: float) -> None:
        known = self._held.pop(stage_id, None)
        if known is not None:
            known[1].cancel()
            held = list(dict.fromkeys([*known[0], *held]))
        if held:
            hold_s = min(max(0.0, hold_s), _MAX_HOLD_S)
            timer = self._loop.call_later(hold_s, self.unstage, stage_id)
            self._held[stage_id] = held, timer

    def _on_read(self, staged: Staged, error: BaseException | None) -> None:
        block_hash = staged.record.meta.hash
        if error is not None:
            staged.holders.clear()
        for request in self._waiting.pop(block_hash, []):
            if error is not None:
                request.why = str(error)
            request.missing.discard(block_hash)
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
            grants = [self._grant(at, request.hold_s) for at in locations if at is not None]
        request.call.reply(StageReply(locations=locations, why=request.why[:500], grants=grants))
        for block_hash in request.missing:
            _remove(self._waiting, block_hash, request)
            _remove(self._wanted, block_hash, request)

    def _location(
        self, block_hash: BlockHash, own: frozenset[bytes] | None
    ) -> BlockLocation | None:
        """None for what is not here, or not in one of these namespaces."""
        replica = self._slots.readable(block_hash)
        if replica is None or (own is not None and replica.meta.namespace not in own):
            return None
        return self._locate(replica)

    def _end_if_free(self, staged: Staged) -> None:
        if staged.is_filled and not staged.holders:
            self._end(staged)

    def _end(self, staged: Staged) -> None:
        self._slots.end(staged)
        self._retry_wanted()


def _remove(
    requests_by_block: dict[BlockHash, list[_Request]], block_hash: BlockHash, request: _Request
) -> None:
    requests = requests_by_block.get(block_hash, [])
    if request in requests:
        requests.remove(request)
        if not requests:
            del requests_by_block[block_hash]
