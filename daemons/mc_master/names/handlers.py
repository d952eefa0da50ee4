"""Requests about names: reserve, release, locate, exist, delete, list, stat. Names to versions and places."""

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Final, assert_never

from daemons.conductor.membership import Member
from daemons.conductor.put_placement import PutNode, choose_put_target
from daemons.config.segment_cut import SLOT_ALIGN, default_slab_bytes
from daemons.core.errors import ProtocolError, Unavailable
from daemons.core.ids import BlockHash, HostId, NodeId
from daemons.core.units import MIB
from daemons.mc_master.blocks.lookups import granted_lease_s
from daemons.mc_master.names.keeper import NameKeeper
from daemons.mc_master.state import MasterState
from daemons.protocol.base import Ok
from daemons.protocol.block import BlockLocation
from daemons.protocol.messages import NameRequest
from daemons.protocol.name_hash import MAX_NAME_BYTES, name_key
from daemons.protocol.objects import (
    DeleteNames,
    ExistNames,
    ExistNamesReply,
    ListNames,
    ListNamesReply,
    LocateNames,
    LocateNamesReply,
    NameToReserve,
    ReleaseNames,
    ReservedName,
    ReserveNames,
    ReserveNamesReply,
    StatNames,
    StatNamesReply,
)
from daemons.protocol.request import PutTarget
from daemons.rpc import Call
from daemons.store.directory.columns import NO_ROW
from daemons.store.directory.object_rows import list_names, stat_namespaces
from daemons.store.segment.runs import in_memory

MAX_NAMES: Final = 10_000
"""In one message."""
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
_ABSENT, _PRESENT, _UNREACHABLE, _REBUILDING = range(4)


class ObjectHandlers:
    """Loop thread only."""

    def __init__(self, state: MasterState, keeper: NameKeeper) -> None:
        self._state = state
        self._keeper = keeper

    def handle(self, call: Call, message: NameRequest) -> None:
        match message:
            case ReserveNames():
                call.reply(self._reserve(message))
            case ReleaseNames():
                self._release(message)
                call.reply(Ok())
            case LocateNames():
                call.reply(self._locate(message))
            case ExistNames():
                call.reply(ExistNamesReply(states=self._exist(message)))
            case DeleteNames():
                self._delete(call, message)
            case ListNames():
                call.reply(self._list(message))
            case StatNames():
                call.reply(StatNamesReply(namespaces=stat_namespaces(self._state.directory)))
            case _:
                assert_never(message)

    # -- puts ----------------------------------------------------------------------------------------------------

    def _reserve(self, message: ReserveNames) -> ReserveNamesReply:
        _check_names([item.name for item in message.names])
        sizes = [item.value_bytes for item in message.names]
        if sizes and not 0 <= min(sizes) <= max(sizes) <= MAX_VALUE_BYTES:
            raise ProtocolError(f"a value has 0 to {MAX_VALUE_BYTES} bytes")
        is_large = sum(sizes) > _ONE_NODE_BYTES
        targets = self._targets(message, _MAX_TARGETS if is_large else _FEW_TARGETS)
        if not targets:
            raise Unavailable("no cache node is up to put to", retry_after_ms=500)
        hold_s = min(max(0.0, message.hold_ms / 1000), MAX_HOLD_S)
        names = [self._reserve_one(message, item, hold_s) for item in message.names]
        self._state.conductor.num_plans += 1
        for member in targets if is_large else targets[:1]:
            member.last_chosen = self._state.conductor.num_plans
        return ReserveNamesReply(
            names=names,
            targets=[PutTarget(node=m.node.node, control=m.node.control) for m in targets],
            chunk_bytes=_chunk_bytes(targets),
            room_bytes=self._room_bytes() if is_large else None,
        )

    def _release(self, message: ReleaseNames) -> None:
        """What was put in vain makes room once its nodes have reported it; what they report later is not taken."""
        names, now_s = self._keeper.names, self._state.now_s()
        counts = chain(message.num_chunks, repeat(0))
        for item, num_chunks in zip(message.names, counts, strict=False):
            key = name_key(message.namespace, item.name)
            was_held = names.is_held(key, item.version, now_s=now_s)
            if was_held or self._may_still_come(key, item.version):
                names.give_up(key, item.version, now_s=now_s)
            if was_held and num_chunks > 0:
                free = self._keeper.chunks.free_put_in_vain
                self._state.loop.call_later(_REPORTED_S, free, key, item.version, num_chunks)

    def _may_still_come(self, key: BlockHash, version: int) -> bool:
        """Of a put whose reservation is over, or of an earlier master."""
        is_sealed = any(held == version for _, held in self._state.directory.versions_of(key))
        return self._keeper.names.was_given(version) and not is_sealed

    def _reserve_one(
        self, message: ReserveNames, item: NameToReserve, hold_s: float
    ) -> ReservedName:
        names, now_s = self._keeper.names, self._state.now_s()
        key = name_key(message.namespace, item.name)
        if item.version:
            is_held = names.renew(key, item.version, now_s=now_s, hold_s=hold_s)
            return ReservedName(status="reserved" if is_held else "lost", version=item.version)
        if not message.replaces:
            taken = self._taken(message.namespace, item.name, key)
            if taken is not None:
                return taken
            if names.is_reserved(key, now_s=now_s):
                return ReservedName(status="being_written")
        return ReservedName(
            status="reserved",
            version=names.reserve(key, now_s=now_s, hold_s=hold_s, replaces=message.replaces),
        )

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
        [state] = self._states(namespace, [name], self._rows(namespace, [name]))
        if state == _UNREACHABLE:
            return ReservedName(status="unreachable")
        return ReservedName(status="rebuilding") if state == _REBUILDING else None

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

    # -- look-ups ------------------------------------------------------------------------------------------------

    def _rows(self, namespace: bytes, names: Sequence[bytes]) -> list[int]:
        find = self._state.directory.blocks.rows_by_name.get(namespace, {}).get
        return [find(name, NO_ROW) for name in names]

    def _exist(self, message: ExistNames) -> bytes:
        """Mostly all that is known by name can be read: then one look-up each says it."""
        directory, names = self._state.directory, message.names
        _check_count(names)
        if directory.replicas.is_all_readable(now_s=self._state.now_s()):
            of_namespace = directory.blocks.rows_by_name.get(message.namespace, {})
            states = bytes(map(of_namespace.__contains__, names))
            if _ABSENT not in states or self._is_absence_sure():
                return states
        return self._states(message.namespace, names, self._rows(message.namespace, names))

    def _is_absence_sure(self) -> bool:
        return not self._state.directory.away and not self._keeper.is_rebuilding()

    def _states(self, namespace: bytes, names: Sequence[bytes], rows: Sequence[int]) -> bytes:
        directory = self._state.directory
        states = directory.presence(rows, now_s=self._state.now_s())
        if _ABSENT not in states:
            return bytes(states)
        absent = _REBUILDING if self._keeper.is_rebuilding() else _ABSENT
        if directory.away or absent:
            for index, state in enumerate(states):
                if state == _ABSENT and rows[index] == NO_ROW:
                    is_away = name_key(namespace, names[index]) in directory.away
                    states[index] = _UNREACHABLE if is_away else absent
        return bytes(states)

    def _locate(self, message: LocateNames) -> LocateNamesReply:
        _check_names(message.names)
        state, blocks = self._state, self._state.directory.blocks
        rows = self._rows(message.namespace, message.names)
        states = self._states(message.namespace, message.names, rows)
        lease_s = granted_lease_s(message.lease_ms)
        hashes = [blocks.hash_of(row) for row in rows if row != NO_ROW]
        located = state.directory.locate(hashes, now_s=state.use_s(), lease_s=lease_s)
        of_known = iter(located.unpack())
        replicas: list[list[BlockLocation]] = [
            [] if row == NO_ROW else next(of_known) for row in rows
        ]
        sizes = [0 if row == NO_ROW else blocks.names[row].value_bytes for row in rows]
        grants = []
        if message.wants_grants:
            found = in_memory(replicas)
            grants = state.grants.sign(found, now_s=state.now_s(), ttl_s=lease_s)
        return LocateNamesReply(states=states, replicas=replicas, value_bytes=sizes, grants=grants)

    def _list(self, message: ListNames) -> ListNamesReply:
        page = list_names(
            self._state.directory,
            message.namespace,
            message.prefix,
            cursor=message.cursor,
            limit=min(max(1, message.limit), MAX_NAMES),
            now_s=self._state.now_s(),
        )
        return ListNamesReply(names=page.names, cursor=page.cursor)

    def _delete(self, call: Call, message: DeleteNames) -> None:
        _check_names(message.names)
        rows = self._rows(message.namespace, message.names)
        states = self._states(message.namespace, message.names, rows)
        keys: list[BlockHash] = []
        for name, state in zip(message.names, states, strict=True):
            key = name_key(message.namespace, name)
            # One that is being put, or was in vain and may still arrive, is deleted too: who deletes last means it.
            if state != _ABSENT or self._keeper.names.may_be_sealed(key):
                keys.append(key)
        self._keeper.delete(call, keys, states)


def _check_count(names: Sequence[bytes]) -> None:
    if len(names) > MAX_NAMES:
        raise ProtocolError(f"{len(names)} names in one message; {MAX_NAMES} are the most")


def _check_names(names: Sequence[bytes]) -> None:
    _check_count(names)
    lengths = set(map(len, names))
    if names and not 0 < min(lengths) <= max(lengths) <= MAX_NAME_BYTES:
        raise ProtocolError(f"a name has 1 to {MAX_NAME_BYTES} bytes")


def _chunk_bytes(targets: Sequence[Member]) -> int:
    """With its trailer in the page that is left over a chunk fills a slot of which slabs have a whole number."""
    slabs = [default_slab_bytes(m.node.segments[0].capacity_bytes) for m in targets]
    return max(MIB, min(_MAX_CHUNK, min(slabs) // _SLOTS_PER_SLAB)) - SLOT_ALIGN
