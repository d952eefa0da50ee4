"""FlushBlocks: nodes are told what to write to a lower tier; how far they are is seen in the directory, so nothing is
remembered here and the message can be sent again at any time.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.state import MasterState
from daemons.protocol.block import Tier
from daemons.protocol.cache import FlushBlocks, FlushBlocksReply
from daemons.protocol.tiers import WriteDown
from daemons.store.directory import listing

_WRITTEN_TIERS: Final[tuple[Tier, ...]] = ("dram", "ssd", "object")
NOTICE_BLOCKS = 1024
"""Told to one node at a time: about what a disk takes between two looks of the asker."""


def flush(state: MasterState, message: FlushBlocks) -> FlushBlocksReply:
    """Tell each node the next piece of what is left. Raises Rejected for a filter that is none."""
    directory = state.directory
    found = listing.select_replicas(directory, message.filter, now_s=state.now_s())
    num_done = num_left = left_bytes = num_without = 0
    left_by_node: dict[NodeId, int] = {}
    for node in {node for node, _ in found}:
        here = _above(found, node, message.to)
        below = (node, message.to)
        is_there = set(found.get(below, ()))
        in_dram = set(found.get((node, "dram"), ())) if message.evict else ()
        left = [each for each in here if each not in is_there or each in in_dram]
        num_done += len(here) - len(left)
        num_left += len(left)
        if left:
            left_by_node[node] = len(left)
        left_bytes += sum(directory.length_on((node, here[each]), each) for each in left)
        if not directory.has_tier(*below):
            num_without += len(left)
            continue
        member = state.membership.get(node)
        if left and member is not None:
            told = WriteDown(hashes=left[:NOTICE_BLOCKS], to=message.to, evict=message.evict)
            state.out.notify(member, told)
    in_tier = {h for (_, tier), hashes in found.items() if tier == message.to for h in hashes}
    if message.evict:
        num_done = len(in_tier)
    return FlushBlocksReply(
        num_done=num_done,
        num_left=num_left,
        left_bytes=left_bytes,
        num_without=num_without,
        left_by_node=left_by_node,
    )


def _above(
    found: Mapping[tuple[NodeId, Tier], Sequence[BlockHash]], node: NodeId, to: Tier
) -> dict[BlockHash, Tier]:
    """What a node has in DRAM and in the tiers between it and this one, each with the fastest that has it."""
    between = _WRITTEN_TIERS[: _WRITTEN_TIERS.index(to)] if to in _WRITTEN_TIERS else ()
    return {h: tier for tier in reversed(between) for h in found.get((node, tier), ())}
