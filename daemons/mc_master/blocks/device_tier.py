"""What instances report of their KV arenas: recorded as hints for the Conductor, shown to whoever looks at blocks."""

from collections.abc import Sequence
from typing import Final

from daemons.conductor.membership import Member
from daemons.core.errors import ProtocolError
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.blocks.clearing import Clearing
from daemons.mc_master.blocks.report_order import out_of_order
from daemons.mc_master.state import MasterState
from daemons.protocol.block import BlockFilter, RemovalReason, Tier
from daemons.protocol.cache import ListedBlock, TierUsage
from daemons.protocol.event import BlocksRemoved, BlocksStored
from daemons.protocol.report import Report, ReportReply
from daemons.store.directory import listing
from daemons.store.directory.device_index import DeviceBlock

_TIER: Final[Tier] = "device"


class DeviceTier:
    """Loop thread only."""

    def __init__(self, state: MasterState, clearing: Clearing) -> None:
        self._state = state
        self._index = state.devices
        self._clearing = clearing

    def report(self, member: Member, report: Report) -> ReportReply:
        """Of an instance that was heard just now. Raises ProtocolError."""
        if member.node.model is None:
            raise ProtocolError(f"node {report.node} serves no model, it has no device tier")
        refused = out_of_order(member, report, self._clearing.cleared_since)
        if refused is not None:
            return refused
        if member.has_old_blocks or report.sequence <= 1:
            member.has_old_blocks = False
            self._clearing.on_gone(report.node)
            self._removed(report.node, self._index.drop_node(report.node), "node_left")
        unwanted = self._record(report)
        member.next_sequence = report.sequence + 1
        member.tiers[_TIER] = TierUsage(
            num_blocks=self._index.num_on(report.node),
            used_bytes=report.used_bytes,
            capacity_bytes=report.capacity_bytes,
        )
        return ReportReply(unwanted=unwanted)

    def on_gone(self, node: NodeId) -> None:
        """Its life has ended, and what was in its memory with it."""
        self._removed(node, self._index.drop_node(node), "node_left")

    def list_blocks(
        self, wanted: BlockFilter, *, after: BlockHash | None, limit: int
    ) -> tuple[list[ListedBlock], bool]:
        """A page of the pool's blocks and of those that are in some arena alone, in the order of the hash."""
        directory, now_s = self._state.directory, self._state.now_s()
        page, has_more = listing.list_blocks(
            directory, wanted, after=after, limit=limit, now_s=now_s
        )
        found = {block.meta.hash: block for block in page}
        here = (key for key in self._index.select(wanted, now_s=now_s) if not after or key > after)
        for key in sorted(here)[: limit + 1]:
            if key not in found:
                found[key] = listing.find_block(directory, key, now_s=now_s) or _alone(
                    self._block(key), now_s
                )
        names = sorted(found)
        blocks = [self._with_holders(found[key]) for key in names[:limit]]
        return blocks, has_more or len(names) > limit

    def nodes_of(self, hashes: Sequence[BlockHash]) -> dict[int, list[NodeId]]:
        """By index, of those that any instance holds."""
        found = {at: self._index.nodes_of(key) for at, key in enumerate(hashes)}
        return {at: nodes for at, nodes in found.items() if nodes}

    def _record(self, report: Report) -> list[BlockHash]:
        """Frees first, then seals; what was cleared meanwhile is not recorded, and returned."""
        state, node = self._state, report.node
        freed = self._index.record_freed(node, report.freed)
        cleared = self._clearing.on_freed((node, _TIER), report.freed)
        self._removed(node, [key for key in freed if key in cleared], "cleared")
        self._removed(node, [key for key in freed if key not in cleared], "evicted")
        unwanted = self._clearing.cleared_since(node, report.sealed)
        wanted = report.sealed.without(unwanted)
        sealed = self._index.record_sealed(node, wanted, now_s=state.now_s())
        if len(sealed):
            state.out.publish(
                BlocksStored(incarnation=state.incarnation, sealed=sealed, node=node, tier=_TIER)
            )
        return list(unwanted)

    def _removed(self, node: NodeId, hashes: Sequence[BlockHash], why: RemovalReason) -> None:
        if hashes:
            self._state.out.publish(
                BlocksRemoved(
                    incarnation=self._state.incarnation,
                    hashes=list(hashes),
                    node=node,
                    why=why,
                    tier=_TIER,
                )
            )

    def _block(self, key: BlockHash) -> DeviceBlock:
        block = self._index.get(key)
        assert block is not None, "selected just now"
        return block

    def _with_holders(self, block: ListedBlock) -> ListedBlock:
        nodes = self._index.nodes_of(block.meta.hash)
        return block.on_devices(nodes) if nodes else block


def _alone(block: DeviceBlock, now_s: float) -> ListedBlock:
    """One that the pool does not have."""
    age_s = max(0.0, now_s - block.made_s)
    return ListedBlock(
        meta=block.meta,
        nodes=[],
        length=block.length,
        age_s=age_s,
        idle_s=age_s,
        is_leased=False,
        tiers=[],
        wanted=0,
    )
