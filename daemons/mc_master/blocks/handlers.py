"""Report, Match, Locate, BadReplica, ListBlocks, ClearBlocks, FlushBlocks, PinBlocks, CacheStat: each to the file that
answers it, the small ones here.
"""

import logging
from collections.abc import Sequence
from typing import Final, assert_never

from daemons.conductor.membership import Member
from daemons.core.errors import NotFound, Unavailable
from daemons.mc_master.blocks.clearing import Clearing
from daemons.mc_master.blocks.device_tier import DeviceTier
from daemons.mc_master.blocks.flushing import flush
from daemons.mc_master.blocks.lookups import Lookups
from daemons.mc_master.blocks.pinning import Pinning
from daemons.mc_master.blocks.removals import Removals
from daemons.mc_master.blocks.reports import Concerned, Reports
from daemons.mc_master.names.keeper import NameKeeper
from daemons.mc_master.nodes.handlers import MembershipHandlers
from daemons.mc_master.state import MasterState
from daemons.protocol.access import namespaces_of
from daemons.protocol.base import Ok
from daemons.protocol.block import BadReplica, FreeBlocks, Tier
from daemons.protocol.cache import (
    CacheStat,
    CacheStatReply,
    ClearBlocks,
    FlushBlocks,
    ListBlocks,
    ListBlocksReply,
    TierUsage,
)
from daemons.protocol.lookup import Locate, Match
from daemons.protocol.pin import PinBlocks
from daemons.protocol.report import Report
from daemons.rpc import Call
from daemons.store.directory import listing

log = logging.getLogger(__name__)

BlockRequest = (
    Report
    | BadReplica
    | Match
    | Locate
    | ListBlocks
    | ClearBlocks
    | FlushBlocks
    | PinBlocks
    | CacheStat
)
MAX_PAGE: Final = 10_000
SWEEP_ROWS: Final = 200
SWEEP_S: Final = 0.003
"""Look-ups wait for it. About that long at a time, whatever the machine."""


class BlockHandlers:
    """Loop thread only."""

    def __init__(
        self, state: MasterState, membership: MembershipHandlers, names: NameKeeper
    ) -> None:
        self._state = state
        self._clearing = Clearing(state)
        self._pinning = Pinning(state)
        self._devices = DeviceTier(state, self._clearing)
        self._removals = Removals(state)
        concerned = Concerned(membership, names, self._clearing, self._pinning, self._devices)
        self.reports = Reports(state, concerned, self._removals)
        self.lookups = Lookups(state, self._devices)
        membership.on_gone.append(self._devices.on_gone)
        membership.on_gone.append(self._clearing.on_gone)
        membership.on_joined.append(self._clearing.on_joined)

    def handle(self, call: Call, message: BlockRequest) -> None:
        match message:
            case Match():
                self.lookups.match(call, message)
            case Report():
                call.reply(self.reports.hear(call, message))
            case Locate():
                call.reply(self.lookups.locate(message, namespaces_of(call.owner)))
            case BadReplica():
                self._pass_on(call, message)
            case ListBlocks():
                call.reply(self._list(message))
            case ClearBlocks():
                self._clearing.start(call, message)
            case FlushBlocks():
                call.reply(flush(self._state, message))
            case PinBlocks():
                call.reply(self._pinning.change(message))
            case CacheStat():
                call.reply(self._stat())
            case _:
                assert_never(message)

    def tick(self) -> None:
        """Once per beat interval."""
        self._pinning.tick()
        for member, hashes in self.reports.victims.of_silent():
            self._state.out.notify(member, FreeBlocks(hashes=hashes))

    def sweep(self) -> bool:
        """A bounded piece of cleaning up after nodes that are gone; whether more is left."""
        state = self._state
        end_s = state.now_s() + SWEEP_S
        while gone := state.directory.sweep(SWEEP_ROWS):
            for place, hashes in gone.items():
                self._removals.tell(place, hashes, "node_left")
            if state.now_s() >= end_s:
                break
        return state.directory.is_sweeping

    def close(self) -> None:
        self._clearing.close()

    def _pass_on(self, call: Call, message: BadReplica) -> None:
        own = namespaces_of(call.owner)
        namespace = self._state.directory.blocks.namespace_of(message.hash)
        if own is not None and namespace not in own:
            raise NotFound("no such block")
        member = self._state.membership.get(message.node)
        if member is None:
            raise NotFound(f"node {message.node} is not a member")
        log.warning(
            "bad replica node=%s block=%s why=%r",
            message.node,
            message.hash.hex()[:8],
            message.why[:200],
        )
        if not self._state.out.notify(member, message):
            raise Unavailable(f"node {message.node} cannot be reached")
        call.reply(Ok())

    def _list(self, message: ListBlocks) -> ListBlocksReply:
        limit = min(max(1, message.limit), MAX_PAGE)
        blocks, has_more = self._devices.list_blocks(
            message.filter, after=message.after, limit=limit
        )
        return ListBlocksReply(blocks=blocks, has_more=has_more)

    def _stat(self) -> CacheStatReply:
        state = self._state
        totals = listing.total(state.directory, now_s=state.now_s())
        lookups = state.directory.lookups
        nodes = [member for member in state.membership if member.state != "dead"]
        return CacheStatReply(
            num_blocks=totals.num_blocks,
            num_replicas=totals.num_replicas,
            used_bytes=sum(member.used_bytes for member in nodes),
            capacity_bytes=sum(member.capacity_bytes for member in nodes),
            num_leased=totals.num_leased,
            num_lookups=lookups.num_lookups,
            num_lookup_blocks=lookups.num_lookup_blocks,
            num_hit_blocks=lookups.num_hit_blocks,
            num_stored=state.num_stored,
            num_evicted=state.num_evicted,
            num_cleared=state.num_cleared,
            blocks_by_model=totals.blocks_by_model,
            num_pinned=totals.num_pinned,
            tiers=_by_tier(nodes),
        )


def _by_tier(nodes: Sequence[Member]) -> dict[Tier, TierUsage]:
    """Those beside DRAM, over all nodes."""
    found: dict[Tier, TierUsage] = {}
    for member in nodes:
        for tier, usage in member.tiers.items():
            known = found.get(tier)
            found[tier] = TierUsage(
                num_blocks=usage.num_blocks + (known.num_blocks if known else 0),
                used_bytes=usage.used_bytes + (known.used_bytes if known else 0),
                capacity_bytes=usage.capacity_bytes + (known.capacity_bytes if known else 0),
            )
    return found
