"""Report: what a node says it has sealed and freed is recorded, and answered with what it is to free.

What was known of a node stays readable until its announcement begins: readers verify.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from daemons.conductor.membership import Member
from daemons.core.errors import NotFound, ProtocolError, Unavailable
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.blocks.clearing import Clearing
from daemons.mc_master.blocks.device_tier import DeviceTier
from daemons.mc_master.blocks.pinning import Pinning
from daemons.mc_master.blocks.removals import Removals
from daemons.mc_master.blocks.report_order import out_of_order
from daemons.mc_master.blocks.victims import Victims
from daemons.mc_master.checks import check_report, check_segments
from daemons.mc_master.names.keeper import NameKeeper
from daemons.mc_master.nodes.handlers import MembershipHandlers
from daemons.mc_master.state import MasterState
from daemons.protocol.cache import TierUsage
from daemons.protocol.event import BlocksStored
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report, ReportReply
from daemons.protocol.segment import SegmentDescription, regions_of
from daemons.rpc import Call


@dataclass(frozen=True, slots=True)
class Concerned:
    """Who has something to learn from reports, or to answer."""

    membership: MembershipHandlers
    names: NameKeeper
    clearing: Clearing
    pinning: Pinning
    devices: DeviceTier


class Reports:
    """Loop thread only."""

    def __init__(self, state: MasterState, concerned: Concerned, removals: Removals) -> None:
        self._state = state
        self._membership = concerned.membership
        self._names = concerned.names
        self._clearing = concerned.clearing
        self._pinning = concerned.pinning
        self._devices = concerned.devices
        self._removals = removals
        self.victims = Victims(state)
        self.on_sealed: Callable[[NodeId, SealedBlocks], object] = lambda _n, _s: None
        """Called with what a node has reported, new or again, once it is recorded."""

    def hear(self, call: Call, report: Report) -> ReportReply:
        """Raises NotFound for a node that is not joined as what it reports for, ProtocolError for what cannot be,
        Unavailable where it shows that this master must step down.
        """
        check_report(report)
        member = self._membership.hear(call, report.node, report.epoch)
        if report.tier == "device":
            return self._devices.report(member, report)
        if not member.node.segments:
            raise NotFound(f"node {report.node} joined without a segment, it cannot hold blocks")
        refused = out_of_order(member, report, self._clearing.cleared_since)
        if refused is not None:
            return refused
        lived = self._names.other_lives.shown_by(report)
        if lived is not None:
            self._state.out.step_down(lived)
            raise Unavailable(
                f"a master of incarnation {lived} gave out higher versions: this one ends"
            )
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
        victims = self.victims.of(member)
        fitting = self.victims.fitting(member, report.short_of)
        if report.refused_puts and not victims:
            self.victims.look_at_refusal(member)
        held = self.victims.held_back(report.node)
        return ReportReply(
            victims=victims,
            fitting=fitting,
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
            self._removals.tell(place, [each for each in freed if each in cleared], "cleared")
            evicted = [each for each in freed if each not in cleared]
        self._removals.tell(place, evicted, "evicted")
        self._removals.tell(place, bad, "bad")
        unwanted = self._clearing.cleared_since(report.node, report.sealed)
        wanted = report.sealed.without(unwanted | self._names.refused(report))
        sealed = directory.record_checked(
            report.node, wanted, now_s=state.use_s(), tier=report.tier
        )
        if self._clearing.is_running:
            # Sealed since, or they would be unwanted: what was to be cleared is gone, and nobody frees it any more.
            self._clearing.on_freed(place, [b.meta.hash for b in wanted if b.meta.name])
        self.on_sealed(report.node, wanted)
        self._names.chunks.on_recorded(sealed)
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
