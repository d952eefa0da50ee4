"""Which blocks a node that fills up is told to free, and what it keeps that may not go."""

from collections.abc import Iterator, Sequence
from typing import Final

from daemons.conductor.membership import Member
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.state import MasterState
from daemons.protocol.report import Shortage
from daemons.store.directory import listing

MAX_VICTIMS: Final = 4096
"""Told at once; the rest follows with the next report."""
_SEARCH_AGAIN_S: Final = 0.1
_NOTHING: Final = listing.HeldBack(0, 0)


class Victims:
    """Loop thread only."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self._held_back: dict[NodeId, listing.HeldBack] = {}
        """Of nodes that are full and have nothing that may go."""

    def held_back(self, node: NodeId) -> listing.HeldBack:
        """Why the node had no victims when they were chosen last."""
        return self._held_back.get(node, _NOTHING)

    def look_at_refusal(self, member: Member) -> None:
        """It refused a put and is not full, for want of slots of that size: what stays is told all the same."""
        now_s = self._state.now_s()
        if not member.is_evicting and now_s >= member.next_eviction_s:
            member.next_eviction_s = now_s + _SEARCH_AGAIN_S
            node = member.node.node
            self._held_back[node] = listing.held_back(self._state.directory, node, now_s=now_s)

    def of_silent(self) -> Iterator[tuple[Member, list[BlockHash]]]:
        """Nodes that are full report nothing when all puts are refused: they have to be told unasked."""
        for member in self._state.membership:
            if member.state == "alive" and member.node.segments:
                hashes = self.of(member)
                if hashes:
                    yield member, hashes

    def fitting(self, member: Member, shortages: Sequence[Shortage]) -> list[BlockHash]:
        """For puts that wait for a slot in a node that is not full; none under leases of an earlier master, either."""
        state = self._state
        if self._is_too_young():
            return []
        node, now_s = member.node.node, state.now_s()
        hashes: list[BlockHash] = []
        for shortage in shortages:
            room = MAX_VICTIMS - len(hashes)
            hashes += state.directory.fitting_victims(node, shortage, now_s=now_s, max_blocks=room)
        if shortages and not hashes:
            self.look_at_refusal(member)
        return hashes

    def of(self, member: Member) -> list[BlockHash]:
        """From the high watermark down to the low one; none while leases of an earlier master may still run."""
        state = self._state
        pool = state.config.pool
        if member.used_bytes >= pool.high_watermark * member.capacity_bytes:
            member.is_evicting = True
        surplus = member.used_bytes - int(pool.low_watermark * member.capacity_bytes)
        if surplus <= 0:
            member.is_evicting = False
            self._held_back.pop(member.node.node, None)
        now_s = state.now_s()
        if not member.is_evicting or self._is_too_young() or now_s < member.next_eviction_s:
            return []
        hashes = state.directory.victims(
            member.node.node, surplus, now_s=now_s, max_blocks=MAX_VICTIMS
        )
        if hashes:
            self._held_back.pop(member.node.node, None)
        else:  # nothing may go now: do not search at every report
            member.next_eviction_s = now_s + _SEARCH_AGAIN_S
            held = listing.held_back(state.directory, member.node.node, now_s=now_s)
            self._held_back[member.node.node] = held
        return hashes

    def _is_too_young(self) -> bool:
        """Readers may hold leases that an earlier master gave."""
        state = self._state
        return state.incarnation > 1 and state.now_s() < state.started_s + state.config.pool.lease_s
