"""ClearBlocks: the nodes are told what to free; the answer waits until they reported it, or shortly before its time.

Instances free what their KV arenas hold of it, too. A node that was away is told when it announces what was cleared
meanwhile. A clear is remembered here and logged by every cache node, which tell it to the next master.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from daemons.conductor.membership import Member
from daemons.core.errors import Exhausted, Rejected
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.state import MasterState
from daemons.protocol.block import BlockFilter, FreeBlocks, RememberClear, Tombstone
from daemons.protocol.cache import ClearBlocks, ClearBlocksReply
from daemons.protocol.packed import SealedBlocks
from daemons.rpc import Call, Timer
from daemons.store.directory import listing
from daemons.store.directory.slot_table import Place
from daemons.store.directory.tombstones import TTL_S, Tombstones

log = logging.getLogger(__name__)

MAX_CLEARS = 16
NOTICE_BLOCKS = 4096
_COMPUTED_S = 3600.0
"""No prompt is computed for longer."""
_SKEW_S = 1.0
"""Nodes hear of a clear one after the other; this far apart it is one."""


@dataclass(slots=True)
class _Clear:
    call: Call
    lengths: dict[tuple[Place, BlockHash], int]
    """Replicas that are still waited for, with their bytes."""
    left_by_hash: dict[BlockHash, int]
    """Replicas that are not known to be freed."""
    timer: Timer | None = None
    num_cleared: int = 0
    cleared_bytes: int = 0


class Clearing:
    """At most MAX_CLEARS at a time. Leases do not hold a clear back: readers verify, and an operator asked."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self._clears: list[_Clear] = []
        self._tombstones = Tombstones()

    def start(self, call: Call, message: ClearBlocks) -> None:
        if len(self._clears) >= MAX_CLEARS:
            raise Exhausted(f"{MAX_CLEARS} clears are running; wait for one", retry_after_ms=1000)
        state = self._state
        found = self._select(message.filter)
        clear = _Clear(call, {}, {})
        for place, hashes in found.items():
            for block_hash in hashes:
                length = self._length(place, block_hash)
                clear.lengths[place, block_hash] = length
                clear.left_by_hash[block_hash] = clear.left_by_hash.get(block_hash, 0) + 1
        self._clears.append(clear)
        self._remember(message.filter)
        for node, hashes in _by_node(found).items():
            if not self._tell(node, hashes):
                self.on_gone(node)
        if not clear.lengths:
            self._finish(clear)
            return
        left_s = call.answer_by_s - state.now_s()
        clear.timer = state.loop.call_later(max(0.05, left_s), self._finish, clear)

    @property
    def is_running(self) -> bool:
        return bool(self._clears)

    def on_freed(self, place: Place, hashes: Sequence[BlockHash]) -> set[BlockHash]:
        """Which of these a clear had asked for."""
        cleared: set[BlockHash] = set()
        for clear in list(self._clears):
            for block_hash in hashes:
                length = clear.lengths.pop((place, block_hash), None)
                if length is None:
                    continue
                cleared.add(block_hash)
                clear.cleared_bytes += length
                clear.left_by_hash[block_hash] -= 1
                if clear.left_by_hash[block_hash] == 0:
                    del clear.left_by_hash[block_hash]
                    clear.num_cleared += 1
            if not clear.lengths:
                self._finish(clear)
        return cleared

    def learn(self, tombstones: Iterable[Tombstone]) -> None:
        """What a node remembers of clears before this master; their blocks may have been announced by others."""
        state = self._state
        now_s = state.now_s()
        for each in tombstones:
            age_s = each.age_ms / 1000
            if not 0 <= age_s <= TTL_S:
                continue
            older = BlockFilter(
                model=each.filter.model,
                tenant=each.filter.tenant,
                hash_prefix=each.filter.hash_prefix,
                node=each.filter.node,
                hashes=each.filter.hashes,
                older_than_s=age_s + (each.filter.older_than_s or 0.0),
            )
            # Every node tells all it knows, and a look at the whole directory is dear: one for each clear.
            if not self._tombstones.add(each.filter, now_s - age_s, skew_s=_SKEW_S):
                continue
            try:
                found = self._select(older)
            except Rejected:
                log.warning("tombstone passed over filter=%r", each.filter)
                continue
            for node, hashes in _by_node(found).items():
                self._tell(node, hashes)

    def cleared_since(self, node: NodeId, sealed: SealedBlocks) -> set[BlockHash]:
        """Which of these were cleared after the node sealed them: it was away then."""
        if not len(self._tombstones):
            return set()
        now_s, covers = self._state.now_s(), self._tombstones.covers
        return {b.meta.hash for b in sealed if covers(node, b.meta, now_s - b.age_ms / 1000)}

    def on_gone(self, node: NodeId) -> None:
        """It is dead, has another life, or announces from nothing: no word on what it was told will come.

        Its blocks count as left. A node that only lost its connection may still hold them.
        """
        for clear in list(self._clears):
            for key in [key for key in clear.lengths if key[0][0] == node]:
                del clear.lengths[key]
            if not clear.lengths:
                self._finish(clear)

    def on_joined(self, member: Member) -> None:
        """What was cleared while it was away, or before it was there: it is to tell later masters, as all are, or
        not to keep what it was computing then.
        """
        now_s = self._state.now_s()
        for wanted, at_s in self._tombstones:
            age_s = max(0.0, now_s - at_s)
            is_computing = member.node.model is not None and age_s <= _COMPUTED_S
            if member.node.segments or is_computing:
                remember = RememberClear(filter=wanted, age_ms=int(age_s * 1000))
                self._state.out.notify(member, remember)

    def close(self) -> None:
        for clear in list(self._clears):
            self._finish(clear)

    def _remember(self, wanted: BlockFilter) -> None:
        state = self._state
        now_s = state.now_s()
        self._tombstones.expire(now_s)
        self._tombstones.add(wanted, now_s)
        for member in state.membership:
            if member.node.segments or member.node.model is not None:
                state.out.notify(member, RememberClear(filter=wanted))

    def _select(self, wanted: BlockFilter) -> dict[Place, list[BlockHash]]:
        """What matches in the pool, and in the KV arenas of instances. Raises Rejected."""
        state, now_s = self._state, self._state.now_s()
        found = listing.select_replicas(state.directory, wanted, now_s=now_s)
        for node, hashes in state.devices.holders(wanted, now_s=now_s).items():
            found[node, "device"] = hashes
        return found

    def _length(self, place: Place, block_hash: BlockHash) -> int:
        if place[1] != "device":
            return self._state.directory.length_on(place, block_hash)
        held = self._state.devices.get(block_hash)
        return 0 if held is None else held.length

    def _tell(self, node: NodeId, hashes: list[BlockHash]) -> bool:
        """False when it cannot be reached."""
        member = self._state.membership.get(node)
        return member is not None and all(
            self._state.out.notify(
                member, FreeBlocks(hashes=hashes[start : start + NOTICE_BLOCKS], is_deletion=True)
            )
            for start in range(0, len(hashes), NOTICE_BLOCKS)
        )

    def _finish(self, clear: _Clear) -> None:
        if clear not in self._clears:
            return
        self._clears.remove(clear)
        if clear.timer is not None:
            clear.timer.cancel()
        clear.call.reply(
            ClearBlocksReply(
                num_cleared=clear.num_cleared,
                num_left=len(clear.left_by_hash),
                cleared_bytes=clear.cleared_bytes,
            )
        )


def _by_node(found: Mapping[Place, list[BlockHash]]) -> dict[NodeId, list[BlockHash]]:
    """Each block once, in whatever tiers of the node it is."""
    merged: dict[NodeId, dict[BlockHash, None]] = {}
    for (node, _), hashes in found.items():
        merged.setdefault(node, {}).update(dict.fromkeys(hashes))
    return {node: list(hashes) for node, hashes in merged.items()}
