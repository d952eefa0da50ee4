"""What keeps dead versions of objects dead: refuses them in reports, tells every cache node, learns from them; deletes.

The higher version wins everywhere. A node that held a lower one, or comes back with it, is told to free it and to
remember; so is every node that joins, and each tells a later master. Chunks without their object are freed.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from daemons.conductor.membership import Member
from daemons.core.errors import Exhausted, Unavailable
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.names.other_lives import OtherLives
from daemons.mc_master.names.rebuilding import Rebuilding
from daemons.mc_master.state import MasterState
from daemons.protocol.block import (
    DeadName,
    ForgetNames,
    FreeBlocks,
    SealedBlock,
)
from daemons.protocol.event import BlocksRemoved
from daemons.protocol.name_hash import chunk_key
from daemons.protocol.objects import DeleteNamesReply
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report
from daemons.rpc import Call, Timer
from daemons.service.bounded_log import BOUNDED
from daemons.store.directory.names import NameTable, may_be_given
from daemons.store.directory.object_rows import MAX_SCANNED, OBJECT_MODEL, find_orphans
from daemons.store.directory.slot_table import Place
from daemons.store.directory.tombstones import TTL_S

log = logging.getLogger(__name__)

MAX_DELETES = 64
NOTICE_NAMES = 4096
ANSWER_EARLY_S = 0.2
"""So that the answer still arrives before the asker gives up."""
MAX_CHUNKS: Final = 1 << 20
"""Of the largest value in the smallest chunks."""
_PUT_LEASE_S: Final = 3600.0
"""Those of a put that never ends are freed as orphans long before."""
_MAX_CHUNKS = 1024
"""Freed along with their object; those beyond wait for the search for orphans."""
_MAX_VAIN_CHUNKS = 16_384
"""Looked for after a put that failed, some of which were never sealed."""


@dataclass(slots=True, eq=False)
class _Delete:
    call: Call
    states: bytes
    left: set[tuple[NodeId, BlockHash]]
    """What nodes have not logged yet."""
    unconfirmed: set[NodeId] = field(default_factory=set)
    told: set[NodeId] = field(default_factory=set)
    timer: Timer | None = None


class NameKeeper:
    """Loop thread only."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self.names = NameTable(state.incarnation)
        self.rebuilding = Rebuilding(
            state.directory_path, state.incarnation, state.config.pool.rebuild_s
        )
        self._deletes: list[_Delete] = []
        self._orphan_row = 0
        self.other_lives = OtherLives(self.names, state.incarnation)

    def reload(self) -> None:
        """The configuration has changed."""
        self.rebuilding.limit_s = self._state.config.pool.rebuild_s

    def is_rebuilding(self) -> bool:
        return self.rebuilding.is_on(self._state.now_s() - self._state.started_s)

    # -- reports -------------------------------------------------------------------------------------------------

    def refused(self, report: Report) -> set[BlockHash]:
        """Those of a report that must not be recorded: dead, or older than what another node has."""
        refused: set[BlockHash] = set()
        if not report.sealed.is_of_model(OBJECT_MODEL):
            return refused
        orphans: list[BlockHash] = []
        node = report.node
        for block in report.sealed:
            meta = block.meta
            if meta.model != OBJECT_MODEL:
                continue
            dead = self.names.dead.version_of(meta.hash if meta.name else meta.parent)
            if not meta.name:
                if block.version <= dead:
                    refused.add(meta.hash)
                    orphans.append(meta.hash)
            elif not may_be_given(block.version):
                refused.add(meta.hash)
                orphans.append(meta.hash)  # a dead version would shut out all that are given out
            elif meta.hash not in report.freed and self._is_too_late(block):
                refused.add(meta.hash)
                self._bury(meta.hash, block.version)
            elif block.version <= dead or not self._wins((node, report.tier), block):
                refused.add(meta.hash)
                self._tell(node, [self._dead_name(meta.hash, max(dead, block.version))])
            elif self.names.release(meta.hash, block.version):
                self._bury(meta.hash, block.version - 1)
        self._free(node, orphans)
        return refused

    def _is_too_late(self, block: SealedBlock) -> bool:
        """Of a put that was told to have failed. One that took an older version's place stays: that one is gone."""
        key = block.meta.hash
        return (
            self.names.is_given_up(key, block.version)
            and self.names.dead.version_of(key) < block.version
            and not self._state.directory.versions_of(key)
            and key not in self._state.directory.away
            and not self.is_rebuilding()
        )

    def _bury(self, key: BlockHash, version: int) -> None:
        """All up to this one are dead, and all nodes hear of it that have not."""
        if self.names.dead.add(key, version, self._state.now_s()):
            self._broadcast([self._dead_name(key, version)])

    def on_recorded(self, sealed: SealedBlocks) -> None:
        """Chunks stay while their put goes on, or a large value would push out its own beginning."""
        if not sealed.is_of_model(OBJECT_MODEL):
            return
        now_s = self._state.now_s()
        for block in sealed:
            meta = block.meta
            if meta.model != OBJECT_MODEL:
                continue
            if not meta.name and self.names.is_held(meta.parent, block.version, now_s=now_s):
                self._state.directory.lease_until(meta.hash, now_s + _PUT_LEASE_S)
            elif meta.name and meta.value_bytes > block.length:
                self._end_put_leases(block, now_s + self._state.config.pool.lease_s)

    def _end_put_leases(self, block: SealedBlock, until_s: float) -> None:
        directory = self._state.directory
        for index in range(MAX_CHUNKS):
            chunk = chunk_key(block.meta.hash, block.version, index)
            if not directory.lease_until(chunk, until_s):
                return

    def learn(self, member: Member, report: Report) -> None:
        """What the node has logged, or remembers from before this master."""
        now_s = self._state.now_s()
        new: list[DeadName] = []
        for dead in report.dead:
            age_s = dead.age_ms / 1000
            is_good = 0 <= age_s <= TTL_S and may_be_given(dead.version)
            if is_good and self.names.dead.add(dead.key, dead.version, now_s - age_s):
                new.append(dead)
                self._remove(dead.key, dead.version)
        if new:
            self._broadcast(new, but=member.node.node)
        if report.dead:
            self._confirm(member.node.node, report.dead)
        if not report.is_announcing and not report.is_opening:
            self.rebuilding.announced(member.node.node)
            self._state.directory.announced(member.node.node)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def on_joined(self, member: Member) -> None:
        """It hears of all that is dead: it may have been away, and is to tell later masters."""
        if not member.node.segments:
            return
        self.rebuilding.joined(member.node.node)
        now_s = self._state.now_s()
        self._tell(
            member.node.node,
            [
                DeadName(key=key, version=version, age_ms=max(0, int((now_s - at_s) * 1000)))
                for key, version, at_s in self.names.dead
            ],
        )

    def on_gone(self, node: NodeId) -> None:
        self.other_lives.on_gone(node)
        if self._state.membership.get(node) is None:
            self.rebuilding.left(node)
        else:
            self.rebuilding.announced(node)
        for delete in list(self._deletes):
            self._give_up(delete, node)

    def tick(self) -> None:
        """Once per beat interval."""
        state, now_s = self._state, self._state.now_s()
        self.names.expire(now_s)
        self.rebuilding.tick()
        for member in state.membership:
            if member.state == "suspect":
                for delete in list(self._deletes):
                    self._give_up(delete, member.node.node)
        if now_s - state.started_s < state.config.pool.orphan_s:
            return  # puts that an earlier master knew of are not known here yet
        orphans = find_orphans(
            state.directory,
            lambda key, version: self.names.is_held(key, version, now_s=now_s),
            first_row=self._orphan_row,
            sealed_before_s=now_s - state.config.pool.orphan_s,
        )
        self._orphan_row += MAX_SCANNED
        if self._orphan_row >= len(state.directory.blocks.kind):
            self._orphan_row = 0
        for node, hashes in orphans.items():
            log.info("chunks without an object node=%s num=%d", node, len(hashes), extra=BOUNDED)
            self._free(node, hashes)

    def free_chunks(self, key: BlockHash, version: int, num_chunks: int) -> None:
        """Those of a put that failed; what has no object would else keep its lease until it is an orphan."""
        directory = self._state.directory
        if any(sealed == version for _, sealed in directory.versions_of(key)):
            return
        found: dict[NodeId, list[BlockHash]] = {}
        for index in range(min(num_chunks, _MAX_VAIN_CHUNKS)):
            chunk = chunk_key(key, version, index)
            for (node, _), _ in directory.versions_of(chunk):
                found.setdefault(node, []).append(chunk)
                directory.lease_until(chunk, 0.0)
        for node, hashes in found.items():
            self._free(node, hashes)

    # -- deletes -------------------------------------------------------------------------------------------------

    def delete(self, call: Call, keys: Sequence[BlockHash], states: bytes) -> None:
        """Nothing reads these any more from now on; answered when the nodes have logged it."""
        if len(self._deletes) >= MAX_DELETES:
            raise Exhausted(f"{MAX_DELETES} deletes are running; wait for one", retry_after_ms=100)
        state = self._state
        dead: list[DeadName] = []
        holders: set[NodeId] = set()
        for key in keys:
            version = self.names.next_version()
            self.names.dead.add(key, version, state.now_s())
            self.names.release(key, version)
            holders.update(node for (node, _), _ in state.directory.versions_of(key))
            self._remove(key, version)
            state.directory.away.pop(key, None)
            dead.append(DeadName(key=key, version=version))
        told = self._broadcast(dead)
        delete = _Delete(call, states, {(node, d.key) for node in told for d in dead})
        delete.told = told
        delete.unconfirmed = holders - told
        self._deletes.append(delete)
        if not delete.left:
            self._finish(delete)
            return
        left_s = call.deadline_s - state.now_s() - ANSWER_EARLY_S
        delete.timer = state.loop.call_later(max(0.05, left_s), self._finish, delete)

    def _confirm(self, node: NodeId, dead: Iterable[DeadName]) -> None:
        for delete in list(self._deletes):
            delete.left.difference_update((node, name.key) for name in dead)
            if not delete.left:
                self._finish(delete)

    def _give_up(self, delete: _Delete, node: NodeId) -> None:
        """It is stopped or gone; it hears of it when it joins again, from this master or by way of other nodes."""
        waited = {each for each in delete.left if each[0] == node}
        if waited:
            delete.left -= waited
            delete.unconfirmed.add(node)
            if not delete.left:
                self._finish(delete)

    def _finish(self, delete: _Delete) -> None:
        if delete not in self._deletes:
            return
        self._deletes.remove(delete)
        if delete.timer is not None:
            delete.timer.cancel()
        late = {node for node, _ in delete.left} | delete.unconfirmed
        num_logged = len(delete.told - late)
        if late and num_logged < 2:
            delete.call.fail(
                Unavailable(
                    f"not sure to stay deleted: only {num_logged} nodes have logged it, "
                    f"{', '.join(sorted(late))} did not answer; delete again once they are back",
                    retry_after_ms=1000,
                )
            )
            return
        delete.call.reply(DeleteNamesReply(states=delete.states, num_unconfirmed=len(late)))

    # -- inside --------------------------------------------------------------------------------------------------

    def _wins(self, place: Place, block: SealedBlock) -> bool:
        """Whether no replica elsewhere is of a higher version; those of lower ones are dead now."""
        key, version = block.meta.hash, block.version
        held = self._state.directory.versions_of(key)
        if any(other > version for _, other in held):
            return False
        if any(other < version for _, other in held):
            dead = self._dead_name(key, version - 1)
            self.names.dead.add(key, version - 1, self._state.now_s())
            self._remove(key, version - 1, but=place)
            self._broadcast([dead])
        return True

    def _dead_name(self, key: BlockHash, version: int) -> DeadName:
        return DeadName(key=key, version=version)

    def _remove(self, key: BlockHash, version: int, but: Place | None = None) -> None:
        """Nobody is sent to these replicas any more; the nodes are told by the caller."""
        state = self._state
        for place, held in state.directory.versions_of(key):
            if held > version:
                continue
            self._free_chunks(key, held)
            node, tier = place
            if place != but and state.directory.record_freed(node, [key], tier=tier):
                state.out.publish(
                    BlocksRemoved(
                        incarnation=state.incarnation,
                        hashes=[key],
                        node=node,
                        tier=tier,
                        why="cleared",
                    )
                )

    def _free_chunks(self, key: BlockHash, version: int) -> None:
        by_node: dict[NodeId, list[BlockHash]] = {}
        for index in range(_MAX_CHUNKS):
            chunk = chunk_key(key, version, index)
            holders = self._state.directory.versions_of(chunk)
            if not holders:
                break
            for node in {place[0] for place, _ in holders}:
                by_node.setdefault(node, []).append(chunk)
        for node, chunks in by_node.items():
            self._free(node, chunks)

    def _free(self, node: NodeId, hashes: Sequence[BlockHash]) -> None:
        """Chunks have one version only: these need no number."""
        member = self._state.membership.get(node)
        for start in range(0, len(hashes) if member is not None else 0, NOTICE_NAMES):
            part = list(hashes[start : start + NOTICE_NAMES])
            assert member is not None
            self._state.out.notify(member, FreeBlocks(hashes=part, is_deletion=True))

    def _broadcast(self, dead: Sequence[DeadName], but: NodeId | None = None) -> set[NodeId]:
        """Who was told: every cache node that is not dead."""
        nodes = [
            member.node.node
            for member in self._state.membership
            if member.node.segments and member.state != "dead" and member.node.node != but
        ]
        return {node for node in nodes if self._tell(node, dead)}

    def _tell(self, node: NodeId, dead: Sequence[DeadName]) -> bool:
        member = self._state.membership.get(node)
        return member is not None and all(
            self._state.out.notify(
                member, ForgetNames(names=list(dead[start : start + NOTICE_NAMES]))
            )
            for start in range(0, len(dead), NOTICE_NAMES)
        )
