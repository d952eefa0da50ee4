"""What a planned request will read from a slower tier is on its way up while the request still waits in its queue."""

from collections.abc import Sequence

from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.state import MasterState
from daemons.protocol.block import BlockLocation, StageAhead

_SPARE_S = 10.0


def stage_ahead(state: MasterState, matched: Sequence[BlockLocation], starts_in_s: float) -> None:
    """Tell the nodes; best effort, for the reader asks for the same in any case."""
    hashes_by_node: dict[NodeId, list[BlockHash]] = {}
    for location in matched:
        if location.tier != "dram":
            hashes_by_node.setdefault(location.node, []).append(location.hash)
    for node, hashes in hashes_by_node.items():
        member = state.membership.get(node)
        if member is not None:
            hold_ms = int(1000 * (min(starts_in_s, 60.0) + _SPARE_S))
            state.out.notify(member, StageAhead(hashes=hashes, hold_ms=hold_ms))
