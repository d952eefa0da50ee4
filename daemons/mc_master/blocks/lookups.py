"""Match and Locate: where blocks are, with leases for the reader and grants for memory that it may not open whole."""

from typing import Final

from daemons.core.errors import McError
from daemons.core.ids import BlockHash
from daemons.mc_master.blocks.device_tier import DeviceTier
from daemons.mc_master.requests import OnUsed
from daemons.mc_master.state import MasterState
from daemons.protocol.block import BlockLocation
from daemons.protocol.lookup import Locate, LocateReply, Match, MatchReply
from daemons.protocol.segment import RegionGrant
from daemons.rpc import Call
from daemons.store.directory.spares import spares_of
from daemons.store.segment.runs import in_memory

MAX_LEASE_S: Final = 3600.0
MAX_TOGETHER: Final = 16
_NOBODYS: Final = BlockHash(b"")


class Lookups:
    """Loop thread only. What was known of a node stays readable until its announcement begins: readers verify."""

    def __init__(self, state: MasterState, devices: DeviceTier) -> None:
        self._state = state
        self._devices = devices
        self._waiting: list[tuple[Call, Match]] = []
        self.on_used: OnUsed = lambda _rows, _near: ()
        """Called with the blocks of a look-up that leases them, and the host that will read them."""

    def match(self, call: Call, message: Match) -> None:
        """At once, or together with those that wait behind it, which costs each less."""
        if message.wants_grants or not (self._waiting or call.has_followers):
            self.settle()
            self._match(call, message)
            return
        self._waiting.append((call, message))
        if not call.has_followers or len(self._waiting) >= MAX_TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Answer what waits. Called before anything else is served, to which a bug in this must do nothing."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self._state.loop.guard(lambda: self._answer(waiting))
        for call, _ in waiting:
            if not call.is_done:
                call.fail(McError("internal error; see the log of mc-master"))

    def _answer(self, waiting: list[tuple[Call, Match]]) -> None:
        if len(waiting) == 1 or not self._match_together(waiting):
            for call, message in waiting:
                self._match(call, message)

    def _match_together(self, waiting: list[tuple[Call, Match]]) -> bool:
        """False where they have to be looked up one by one."""
        directory, now_s = self._state.directory, self._state.use_s()
        messages = [message for _, message in waiting]
        if len({(message.lease_ms, message.near) for message in messages}) > 1:
            return False
        found = directory.match_together([each.hashes for each in messages], now_s=now_s)
        if found is None:
            return False
        for (call, _), taken in zip(waiting, found, strict=True):
            call.reply(MatchReply(locations=taken.locations))
        lease_s = granted_lease_s(messages[0].lease_ms)
        if lease_s > 0:
            num_asked = sum(len(message.hashes) for message in messages)
            rows = directory.lease_together(found, num_asked, now_s=now_s, lease_s=lease_s)
            self.on_used(rows, messages[0].near)
        return True

    def _match(self, call: Call, message: Match) -> None:
        """The leases are written down behind the answer: nothing comes between, and the reader waits less."""
        directory, now_s = self._state.directory, self._state.use_s()
        hashes, lease_s = message.hashes, granted_lease_s(message.lease_ms)
        taken = directory.match(hashes, now_s=now_s, lease_s=0, near=message.near)
        grants = []
        if message.wants_grants:
            grants = self._grants(message, taken.locations.unpack())
        call.reply(
            MatchReply(
                locations=taken.locations,
                grants=grants,
                spares=spares_of(directory, taken, now_s=now_s),
            )
        )
        if lease_s > 0:
            directory.lease(taken.rows, len(hashes), now_s=now_s, lease_s=lease_s)
            self.on_used(taken.rows, message.near)

    def locate(self, message: Locate, own: frozenset[bytes] | None) -> LocateReply:
        """Of others' blocks a client learns no more than of those that nobody has."""
        namespace_of, hashes = self._state.directory.blocks.namespace_of, message.hashes
        if own is not None:
            hashes = [each if namespace_of(each) in own else _NOBODYS for each in hashes]
        found = self._state.directory.locate(
            hashes,
            now_s=self._state.use_s(),
            lease_s=granted_lease_s(message.lease_ms),
        )
        if message.lease_ms > 0:
            self.on_used(found.rows, None)
        grants = []
        if message.wants_grants:
            grants = self._grants(message, in_memory(found.unpack()))
        return LocateReply(
            locations=found.locations,
            counts=found.counts,
            grants=grants,
            devices=self._devices.nodes_of(hashes) if message.wants_devices and own is None else {},
        )

    def _grants(self, message: Match | Locate, locations: list[BlockLocation]) -> list[RegionGrant]:
        ttl_s = granted_lease_s(message.lease_ms)
        return self._state.grants.sign(locations, now_s=self._state.now_s(), ttl_s=ttl_s)


def granted_lease_s(lease_ms: int) -> float:
    """What a reader gets of the lease that it asks for."""
    return min(max(0.0, lease_ms / 1000), MAX_LEASE_S)
