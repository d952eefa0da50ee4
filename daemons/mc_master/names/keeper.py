"""What keeps dead versions of objects dead: refuses them in reports, tells every cache node, learns from them.

The higher version wins everywhere. A node that held a lower one, or comes back with it, is told to free it and to
remember; so is every node that joins, and each tells a later master.
"""

from collections.abc import Sequence

from daemons.conductor.membership import Member
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.names.chunks import Chunks
from daemons.mc_master.names.deletes import Delete, Deletes
from daemons.mc_master.names.other_lives import OtherLives
from daemons.mc_master.names.rebuilding import Rebuilding
from daemons.mc_master.names.telling import Telling
from daemons.mc_master.state import MasterState
from daemons.protocol.block import DeadName, SealedBlock
from daemons.protocol.event import BlocksRemoved
from daemons.protocol.report import Report
from daemons.rpc import Call
from daemons.store.directory.names import NameTable, may_be_given
from daemons.store.directory.object_rows import OBJECT_MODEL
from daemons.store.directory.slot_table import Place
from daemons.store.directory.tombstones import TTL_S


class NameKeeper:
    """Loop thread only."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self.names = NameTable(state.incarnation)
        self.rebuilding = Rebuilding(
            state.directory_path, state.incarnation, state.config.pool.rebuild_s
        )
        self.other_lives = OtherLives(self.names, state.incarnation)
        self._telling = Telling(state)
        self._deletes = Deletes(state)
        self.chunks = Chunks(state, self.names, self._telling)

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
                newest = DeadName(key=meta.hash, version=max(dead, block.version))
                self._telling.tell(node, [newest])
            elif self.names.release(meta.hash, block.version):
                self._bury(meta.hash, block.version - 1)
        self._telling.free(node, orphans)
        return refused

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
            self._telling.broadcast(new, but=member.node.node)
        if report.dead:
            self._deletes.confirm(member.node.node, report.dead)
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
        self._telling.tell(
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
        self._deletes.give_up(node)

    def tick(self) -> None:
        """Once per beat interval."""
        self.names.expire(self._state.now_s())
        for put in self.names.large.expire(self._state.now_s()):
            self.chunks.end_put_leases(put.key, put.version, put.num_bytes)
        self.rebuilding.tick()
        for member in self._state.membership:
            if member.state == "suspect":
                self._deletes.give_up(member.node.node)
        self.chunks.free_orphans()

    # -- deletes -------------------------------------------------------------------------------------------------

    def delete(self, call: Call, keys: Sequence[BlockHash], states: bytes) -> None:
        """Nothing reads these any more from now on; answered when the nodes have logged it."""
        self._deletes.check_room()
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
        told = self._telling.broadcast(dead)
        self._deletes.begin(Delete(call, states, told, unconfirmed=holders - told), keys)

    # -- inside --------------------------------------------------------------------------------------------------

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
            self._telling.broadcast([DeadName(key=key, version=version)])

    def _wins(self, place: Place, block: SealedBlock) -> bool:
        """Whether no replica elsewhere is of a higher version; those of lower ones are dead now."""
        key, version = block.meta.hash, block.version
        held = self._state.directory.versions_of(key)
        if any(other > version for _, other in held):
            return False
        if any(other < version for _, other in held):
            self.names.dead.add(key, version - 1, self._state.now_s())
            self._remove(key, version - 1, but=place)
            self._telling.broadcast([DeadName(key=key, version=version - 1)])
        return True

    def _remove(self, key: BlockHash, version: int, but: Place | None = None) -> None:
        """Nobody is sent to these replicas any more; the nodes are told by the caller."""
        state = self._state
        for place, held in state.directory.versions_of(key):
            if held > version:
                continue
            self.chunks.free_with(key, held)
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
