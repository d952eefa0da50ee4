"""Report, Match, Locate, BadReplica, ListBlocks, ClearBlocks, FlushBlocks, PinBlocks, CacheStat.

What was known of a node stays readable until its announcement begins: readers verify.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, assert_never

import msgspec

from daemons.conductor.membership import Member
from daemons.core.errors import NotFound, ProtocolError, Unavailable
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.checks import check_report, check_segments
from daemons.mc_master.clearing import Clearing
from daemons.mc_master.device_tier import DeviceTier
from daemons.mc_master.flushing import flush
from daemons.mc_master.membership import MembershipHandlers
from daemons.mc_master.name_keeper import NameKeeper
from daemons.mc_master.pinning import Pinning
from daemons.mc_master.report_order import out_of_order
from daemons.mc_master.requests import OnUsed
from daemons.mc_master.state import MasterState
from daemons.protocol.access import namespaces_of
from daemons.protocol.base import Ok
from daemons.protocol.block import (
    BadReplica,
    BlockLocation,
    CacheStat,
    CacheStatReply,
    ClearBlocks,
    FlushBlocks,
    FreeBlocks,
    ListBlocks,
    ListBlocksReply,
    RemovalReason,
    Tier,
    TierUsage,
)
from daemons.protocol.event import BlocksMoved, BlocksRemoved, BlocksStored
from daemons.protocol.lookup import Locate, LocateReply, Match, MatchReply
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.pin import PinBlocks
from daemons.protocol.report import Report, ReportReply
from daemons.protocol.segment import RegionGrant, SegmentDescription, regions_of
from daemons.rpc import Call
from daemons.store import listing
from daemons.store.runs import in_memory
from daemons.store.slot_table import Place
from daemons.store.spares import spares_of

log = logging.getLogger(__name__)

_NOBODYS: Final = BlockHash(b"")

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
MAX_VICTIMS = 4096
MAX_LEASE_S = 3600.0
MAX_PAGE = 10_000
SWEEP_ROWS = 200
SWEEP_S = 0.003
"""Look-ups wait for it. About that long at a time, whatever the machine."""


class BlockHandlers:
    """Loop thread only."""

    def __init__(
        self, state: MasterState, membership: MembershipHandlers, names: NameKeeper
    ) -> None:
        self._state = state
        self._membership = membership
        self._names = names
        self._clearing = Clearing(state)
        self._pinning = Pinning(state)
        self.devices = DeviceTier(state, self._clearing)
        self._held_back: dict[NodeId, listing.HeldBack] = {}
        """Of nodes that are full and have nothing that may go."""
        membership.on_gone.append(self.devices.on_gone)
        membership.on_gone.append(self._clearing.on_gone)
        membership.on_joined.append(self._clearing.on_joined)
        self.on_sealed: Callable[[NodeId, SealedBlocks], object] = lambda _n, _s: None
        """Called with what a node has reported, new or again, once it is recorded."""
        self.on_used: OnUsed = lambda _hashes, _near: None
        """Called with the blocks of a look-up that leases them, and the host that will read them."""

    def handle(self, call: Call, message: BlockRequest) -> None:
        match message:
            case Report():
                call.reply(self._report(call, message))
            case Match():
                self._match(call, message)
            case Locate():
                call.reply(self._locate(message, namespaces_of(call.owner)))
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
        """Once per beat interval: nodes that are full and silent (all puts refused) are told too."""
        self._pinning.tick()
        for member in self._state.membership:
            if member.state == "alive" and member.node.segments:
                hashes = self._victims(member)
                if hashes:
                    self._state.out.notify(member, FreeBlocks(hashes=hashes))

    def sweep(self) -> None:
        """A bounded piece of cleaning up after nodes that are gone."""
        state = self._state
        end_s = state.now_s() + SWEEP_S
        while gone := state.directory.sweep(SWEEP_ROWS):
            for place, hashes in gone.items():
                self._removed(place, hashes, "node_left")
            if state.now_s() >= end_s:
                return

    def close(self) -> None:
        self._clearing.close()

    # -- reports -------------------------------------------------------------------------------------------------

    def _report(self, call: Call, report: Report) -> ReportReply:
        check_report(report)
        member = self._membership.hear(call, report.node, report.epoch)
        if report.tier == "device":
            return self.devices.report(member, report)
        if not member.node.segments:
            raise NotFound(f"node {report.node} joined without a segment, it cannot hold blocks")
        refused = out_of_order(member, report)
        if refused is not None:
            return refused
        if member.has_old_blocks:
            self._void(member)
        self._learn(member, report)
        if report.tier != "dram":
            self._state.directory.add_tier(report.node, report.tier)
        unwanted = list(self._record(report))
        member.next_sequence = report.sequence + 1
        self._pinning.on_report(
            report.node, is_first=report.sequence == 1, is_announcing=report.is_announcing
        )
        if report.tier != "dram":
            member.tiers[report.tier] = TierUsage(
                num_blocks=self._state.directory.num_blocks_on(report.node, report.tier),
                used_bytes=report.used_bytes,
                capacity_bytes=report.capacity_bytes,
                read_bytes_per_s=report.read_bytes_per_s,
            )
            return ReportReply(unwanted=unwanted)
        member.used_bytes = report.used_bytes
        member.capacity_bytes = report.capacity_bytes
        victims = self._victims(member)
        held = self._held_back.get(report.node, listing.HeldBack(0, 0))
        return ReportReply(
            victims=victims,
            unwanted=unwanted,
            leased_bytes=held.leased_bytes,
            pinned_bytes=held.pinned_bytes,
        )

    def _learn(self, member: Member, report: Report) -> None:
        """What it says beside its blocks."""
        if report.segments:
            self._lend(member, report.segments)
        if report.cleared:
            self._clearing.learn(report.cleared)
        if report.pins:
            self._pinning.learn(report.pins)
        self._names.learn(member, report)

    def _record(self, report: Report) -> set[BlockHash]:
        """A report is frees first, then seals: a block that is in both was sealed again.

        Returns what was cleared while the node was away: it is not recorded, and the node is to free it.
        """
        state = self._state
        directory = state.directory
        place = report.node, report.tier
        freed = directory.record_freed(report.node, report.freed, tier=report.tier)
        bad = directory.record_freed(report.node, report.bad, tier=report.tier)
        cleared = self._clearing.on_freed(place, [*report.freed, *report.bad])
        evicted = freed
        if cleared:
            self._removed(place, [each for each in freed if each in cleared], "cleared")
            evicted = [each for each in freed if each not in cleared]
        self._removed(place, evicted, "evicted")
        self._removed(place, bad, "bad")
        unwanted = self._clearing.cleared_since(report.node, report.sealed)
        wanted = report.sealed.without(unwanted | self._names.refused(report))
        sealed = directory.record_sealed(report.node, wanted, now_s=state.use_s(), tier=report.tier)
        self.on_sealed(report.node, wanted)
        self._names.on_recorded(sealed)
        state.num_stored += len(sealed)
        state.metrics.stored_blocks.inc(len(sealed))
        state.metrics.refused_blocks.inc(report.refused_puts)
        state.out.publish(
            BlocksStored(
                incarnation=state.incarnation, sealed=sealed, node=report.node, tier=report.tier
            )
        )
        return unwanted

    def _void(self, member: Member) -> None:
        node = member.node
        member.has_old_blocks = False
        self._clearing.on_gone(node.node)
        self._state.directory.add_node(
            node.node, node.host_id, node.segments[0].region, control=node.control
        )
        self._state.directory.set_segments(node.node, regions_of(node.segments))

    def _lend(self, member: Member, segments: list[SegmentDescription]) -> None:
        """The node has mounted or unmounted some; of one that went it has freed all before."""
        check_segments(member.node.node, segments)
        if segments[0].region != member.node.segments[0].region:
            raise ProtocolError(f"node {member.node.node} says that its first segment changed")
        member.node = msgspec.structs.replace(member.node, segments=segments)
        self._state.directory.set_segments(member.node.node, regions_of(segments))

    def _removed(self, place: Place, hashes: Sequence[BlockHash], why: RemovalReason) -> None:
        if not hashes:
            return
        state = self._state
        match why:
            case "cleared":
                state.num_cleared += len(hashes)
                state.metrics.cleared_blocks.inc(len(hashes))
            case "evicted":
                state.num_evicted += len(hashes)
                state.metrics.evicted_blocks.inc(len(hashes))
            case "bad":
                state.metrics.bad_blocks.inc(len(hashes))
            case "node_left":
                pass
            case _:
                assert_never(why)
        incarnation, (node, tier) = state.incarnation, place
        if why == "evicted" and (state.moved_to or len(state.directory.slots.numbers_of(node)) > 1):
            hashes = self._publish_moved(place, hashes)
        state.out.publish(
            BlocksRemoved(
                incarnation=incarnation, hashes=list(hashes), node=node, why=why, tier=tier
            )
        )

    def _publish_moved(self, place: Place, hashes: Sequence[BlockHash]) -> list[BlockHash]:
        """What was freed there may have been copied before: to another node, as it was told, or to a lower tier.

        Returns the others.
        """
        by_target: dict[Place | None, list[BlockHash]] = {}
        for block_hash in hashes:
            by_target.setdefault(self._moved_to(place, block_hash), []).append(block_hash)
        gone = by_target.pop(None, [])
        for target, moved in by_target.items():
            assert target is not None, "None was taken out"
            self._state.out.publish(
                BlocksMoved(
                    incarnation=self._state.incarnation,
                    hashes=moved,
                    node=target[0],
                    tier=target[1],
                    from_node=place[0],
                    from_tier=place[1],
                )
            )
        return gone

    def _moved_to(self, place: Place, block_hash: BlockHash) -> Place | None:
        state = self._state
        node = state.moved_to.pop((place[0], block_hash), None) if state.moved_to else None
        if node is not None and state.directory.length_on((node, "dram"), block_hash):
            return node, "dram"
        below = state.directory.tier_below(place, block_hash)
        return None if below is None else (place[0], below)

    def _victims(self, member: Member) -> list[BlockHash]:
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
        is_too_young = state.incarnation > 1 and now_s < state.started_s + pool.lease_s
        if not member.is_evicting or is_too_young or now_s < member.next_eviction_s:
            return []
        hashes = state.directory.victims(
            member.node.node, surplus, now_s=now_s, max_blocks=MAX_VICTIMS
        )
        if hashes:
            self._held_back.pop(member.node.node, None)
        else:  # nothing may go now: do not search at every report
            member.next_eviction_s = now_s + 0.1
            held = listing.held_back(state.directory, member.node.node, now_s=now_s)
            self._held_back[member.node.node] = held
        return hashes

    # -- lookups -------------------------------------------------------------------------------------------------

    def _match(self, call: Call, message: Match) -> None:
        """The leases are written down behind the answer: nothing comes between, and the reader waits less."""
        directory, now_s = self._state.directory, self._state.use_s()
        hashes, lease_s = message.hashes, _lease_s(message.lease_ms)
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
            self.on_used(hashes[: len(taken.rows)], message.near)

    def _locate(self, message: Locate, own: frozenset[bytes] | None) -> LocateReply:
        """Of others' blocks a client learns no more than of those that nobody has."""
        namespace_of, hashes = self._state.directory.blocks.namespace_of, message.hashes
        if own is not None:
            hashes = [each if namespace_of(each) in own else _NOBODYS for each in hashes]
        found = self._state.directory.locate(
            hashes,
            now_s=self._state.use_s(),
            lease_s=_lease_s(message.lease_ms),
        )
        if message.lease_ms > 0:
            used = [key for key, count in zip(hashes, found.counts, strict=True) if count]
            self.on_used(used, None)
        grants = []
        if message.wants_grants:
            grants = self._grants(message, in_memory(found.unpack()))
        return LocateReply(
            locations=found.locations,
            counts=found.counts,
            grants=grants,
            devices=self.devices.nodes_of(hashes) if message.wants_devices and own is None else {},
        )

    def _grants(self, message: Match | Locate, locations: list[BlockLocation]) -> list[RegionGrant]:
        ttl_s = _lease_s(message.lease_ms)
        return self._state.grants.sign(locations, now_s=self._state.now_s(), ttl_s=ttl_s)

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
        blocks, has_more = self.devices.list_blocks(
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


def _lease_s(lease_ms: int) -> float:
    return min(max(0.0, lease_ms / 1000), MAX_LEASE_S)
