"""Names are reserved for a put and released after one that failed: who puts next, in which version, and where."""

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Final

from daemons.conductor.membership import Member
from daemons.conductor.put_placement import PutNode, choose_put_target
from daemons.config.segment_cut import SLOT_ALIGN, default_slab_bytes
from daemons.core.errors import ProtocolError, Unavailable
from daemons.core.ids import BlockHash, HostId, NodeId
from daemons.core.units import MIB
from daemons.mc_master.names.chunks import MIN_CHUNK_BYTES
from daemons.mc_master.names.keeper import NameKeeper
from daemons.mc_master.names.presence import REBUILDING, UNREACHABLE, Presence
from daemons.mc_master.names.turns import Turns
from daemons.mc_master.state import MasterState
from daemons.protocol.name_hash import name_key
from daemons.protocol.objects import (
    NameToReserve,
    ReleaseNames,
    ReservedName,
    ReserveNames,
    ReserveNamesReply,
)
from daemons.protocol.request import PutTarget
from daemons.store.directory.columns import NO_ROW

MAX_VALUE_BYTES: Final = 1 << 40
MAX_HOLD_S: Final = 60.0
_MAX_TARGETS: Final = 16
_FEW_TARGETS: Final = 3
_REPORTED_S: Final = 0.1
"""By then nodes have reported what they sealed before."""
_ONE_NODE_BYTES: Final = 8 * MIB
"""Clients put so much in one message to one node; the other targets are for when that has no room."""
_MAX_CHUNK: Final = 16 * MIB
_SLOTS_PER_SLAB: Final = 4


class Reserving:
    """Loop thread only."""

    def __init__(self, state: MasterState, keeper: NameKeeper, presence: Presence) -> None:
        self._state = state
        self._keeper = keeper
        self._presence = presence
        self._turns = Turns(state, keeper.names.large)

    def reserve(self, message: ReserveNames) -> ReserveNamesReply:
        sizes = [item.value_bytes for item in message.names]
        if sizes and not 0 <= min(sizes) <= max(sizes) <= MAX_VALUE_BYTES:
            raise ProtocolError(f"a value has 0 to {MAX_VALUE_BYTES} bytes")
        is_large = sum(sizes) > _ONE_NODE_BYTES
        targets = self._targets(message, _MAX_TARGETS if is_large else _FEW_TARGETS)
        if not targets:
            raise Unavailable("no cache node is up to put to", retry_after_ms=500)
        hold_s = min(max(0.0, message.hold_ms / 1000), MAX_HOLD_S)
        chunk_bytes = _chunk_bytes(targets)
        names = [
            self._reserve_one(message, item, hold_s, item.value_bytes > chunk_bytes)
            for item in message.names
        ]
        if max(sizes, default=0) > chunk_bytes:
            self._queue(message, names, chunk_bytes)
        self._state.conductor.num_plans += 1
        for member in targets if is_large else targets[:1]:
            member.last_chosen = self._state.conductor.num_plans
        return ReserveNamesReply(
            names=names,
            targets=[PutTarget(node=m.node.node, control=m.node.control) for m in targets],
            chunk_bytes=chunk_bytes,
            room_bytes=self._room_bytes() if is_large else None,
        )

    def release(self, message: ReleaseNames) -> None:
        """What was put in vain makes room once its nodes have reported it; what they report later is not taken."""
        names, now_s = self._keeper.names, self._state.now_s()
        counts = chain(message.num_chunks, repeat(0))
        for item, num_chunks in zip(message.names, counts, strict=False):
            key = name_key(message.namespace, item.name)
            was_held = names.is_held(key, item.version, now_s=now_s)
            if was_held or self._may_still_come(key, item.version):
                names.give_up(key, item.version, now_s=now_s)
            large_bytes = names.large.end(key, item.version) if names.large else 0
            if was_held and num_chunks > 0:
                free = self._keeper.chunks.free_put_in_vain
                self._state.loop.call_later(_REPORTED_S, free, key, item.version, num_chunks)
            elif large_bytes or num_chunks > 0:
                # Overtaken, or its object may be there after all: whether its chunks are of use shows later.
                at_most = max(large_bytes, num_chunks * MIN_CHUNK_BYTES)
                self._keeper.chunks.end_put_leases(key, item.version, at_most)

    def _may_still_come(self, key: BlockHash, version: int) -> bool:
        """Of a put whose reservation is over, or of an earlier master."""
        is_sealed = any(held == version for _, held in self._state.directory.versions_of(key))
        return self._keeper.names.was_given(version) and not is_sealed

    def _reserve_one(
        self, message: ReserveNames, item: NameToReserve, hold_s: float, is_large: bool
    ) -> ReservedName:
        names, now_s = self._keeper.names, self._state.now_s()
        key = name_key(message.namespace, item.name)
        if item.version:
            return self._renew(key, item, hold_s, is_large)
        if not message.replaces:
            taken = self._taken(message.namespace, item.name, key)
            if taken is not None:
                return taken
            if names.is_reserved(key, now_s=now_s):
                return ReservedName(status="being_written")
        if is_large and message.takes_turns:
            waits = self._turns.waits(key, item.value_bytes)
            if waits is not None:
                return waits
        version = names.reserve(key, now_s=now_s, hold_s=hold_s, replaces=message.replaces)
        if is_large:
            self._turns.hold(key, version, item.value_bytes, hold_s)
        return ReservedName(status="reserved", version=version)

    def _renew(
        self, key: BlockHash, item: NameToReserve, hold_s: float, is_large: bool
    ) -> ReservedName:
        lost = self._turns.lost(key, item.version) if is_large else None
        if lost is not None:
            return lost
        now_s = self._state.now_s()
        is_held = self._keeper.names.renew(key, item.version, now_s=now_s, hold_s=hold_s)
        if is_large and is_held:
            self._turns.hold(key, item.version, item.value_bytes, hold_s)
        return ReservedName(status="reserved" if is_held else "lost", version=item.version)

    def _queue(
        self, message: ReserveNames, names: Sequence[ReservedName], chunk_bytes: int
    ) -> None:
        """The first that waits gets a place; none where another one of the call has its turn: that is put first."""
        large = [
            (item, reserved)
            for item, reserved in zip(message.names, names, strict=True)
            if item.value_bytes > chunk_bytes
        ]
        if any(reserved.status == "reserved" for _, reserved in large):
            return
        for item, reserved in large:
            if reserved.status == "waits_for_room":
                self._turns.queue(name_key(message.namespace, item.name))
                return

    def _taken(self, namespace: bytes, name: bytes, key: BlockHash) -> ReservedName | None:
        """Why a name that is not to be replaced cannot be put; None where nothing is known of it, as mostly."""
        directory = self._state.directory
        if directory.blocks.row_by_hash.get(key, NO_ROW) == NO_ROW:
            if key in directory.away:
                return ReservedName(status="unreachable")
            return ReservedName(status="rebuilding") if self._keeper.is_rebuilding() else None
        [replicas] = directory.locate([key], now_s=self._state.now_s(), lease_s=0).unpack()
        if replicas:
            at = replicas[0]
            return ReservedName(status="sealed", version=at.version, location=at)
        [state] = self._presence.states(namespace, [name], self._presence.rows(namespace, [name]))
        if state == UNREACHABLE:
            return ReservedName(status="unreachable")
        return ReservedName(status="rebuilding") if state == REBUILDING else None

    def _targets(self, message: ReserveNames, count: int) -> list[Member]:
        """Best first. Of an object that is replaced its own node, where readers see the new version at once."""
        members = {
            member.node.node: member
            for member in self._state.membership
            if member.node.segments
            and not member.is_draining
            and member.node.node not in message.exclude
        }
        nodes = [
            PutNode(node, m.node.host_id, m.state, m.used_bytes, m.capacity_bytes, m.last_chosen)
            for node, m in members.items()
        ]
        order: list[NodeId] = []
        full = self._state.config.pool.high_watermark
        while nodes and len(order) < count:
            chosen = choose_put_target(nodes, near=message.near or HostId(""), full=full)
            if chosen is None:
                break
            order.append(chosen)
            nodes = [node for node in nodes if node.node != chosen]
        if message.replaces and len(message.names) == 1:
            key = name_key(message.namespace, message.names[0].name)
            holders = [
                node
                for (node, _), _ in self._state.directory.versions_of(key)
                if node in members and members[node].state == "alive"
            ]
            order = list(dict.fromkeys([*holders, *order]))
        return [members[node] for node in order]

    def _room_bytes(self) -> int | None:
        """Of all nodes that may take a value, tiers below DRAM too. None while some may still be on their way."""
        members = [m for m in self._state.membership if m.node.segments and not m.is_draining]
        if self._keeper.is_rebuilding() or any("object" in m.tiers for m in members):
            return None
        below = sum(usage.capacity_bytes for m in members for usage in m.tiers.values())
        return below + sum(m.capacity_bytes for m in members)


def _chunk_bytes(targets: Sequence[Member]) -> int:
    """With its trailer in the page that is left over a chunk fills a slot of which slabs have a whole number."""
    slabs = [default_slab_bytes(m.node.segments[0].capacity_bytes) for m in targets]
    return max(MIN_CHUNK_BYTES, min(_MAX_CHUNK, min(slabs) // _SLOTS_PER_SLAB) - SLOT_ALIGN)
