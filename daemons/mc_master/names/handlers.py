"""Requests about names: reserve, release, locate, exist, delete, list, stat. Names to versions and places."""

from collections.abc import Sequence
from typing import Final, assert_never

from daemons.core.errors import ProtocolError
from daemons.core.ids import BlockHash
from daemons.mc_master.blocks.lookups import granted_lease_s
from daemons.mc_master.names.keeper import NameKeeper
from daemons.mc_master.names.presence import ABSENT, Presence
from daemons.mc_master.names.reserving import Reserving
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
    ReleaseNames,
    ReserveNames,
    StatNames,
    StatNamesReply,
)
from daemons.rpc import Call
from daemons.store.directory.columns import NO_ROW
from daemons.store.directory.object_rows import list_names, stat_namespaces
from daemons.store.segment.runs import in_memory

MAX_NAMES: Final = 10_000
"""In one message."""


class ObjectHandlers:
    """Loop thread only."""

    def __init__(self, state: MasterState, keeper: NameKeeper) -> None:
        self._state = state
        self._keeper = keeper
        self._presence = Presence(state, keeper)
        self._reserving = Reserving(state, keeper, self._presence)

    def handle(self, call: Call, message: NameRequest) -> None:
        match message:
            case ReserveNames():
                _check_names([item.name for item in message.names])
                call.reply(self._reserving.reserve(message))
            case ReleaseNames():
                self._reserving.release(message)
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

    def _exist(self, message: ExistNames) -> bytes:
        _check_count(message.names)
        return self._presence.exist(message.namespace, message.names)

    def _locate(self, message: LocateNames) -> LocateNamesReply:
        _check_names(message.names)
        state, blocks = self._state, self._state.directory.blocks
        rows = self._presence.rows(message.namespace, message.names)
        states = self._presence.states(message.namespace, message.names, rows)
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
        rows = self._presence.rows(message.namespace, message.names)
        states = self._presence.states(message.namespace, message.names, rows)
        keys: list[BlockHash] = []
        for name, state in zip(message.names, states, strict=True):
            key = name_key(message.namespace, name)
            # One that is being put, or was in vain and may still arrive, is deleted too: who deletes last means it.
            if state != ABSENT or self._keeper.names.may_be_sealed(key):
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
