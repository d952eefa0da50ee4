"""FlushBlocks: nodes are told what to write to a lower tier; how far they are is seen in the directory, so nothing is
remembered here and the message can be sent again at any time.
"""

from daemons.mc_master.state import MasterState
from daemons.protocol.block import FlushBlocks, FlushBlocksReply, WriteDown
from daemons.store import listing

NOTICE_BLOCKS = 1024
"""Told to one node at a time: about what a disk takes between two looks of the asker."""


def flush(state: MasterState, message: FlushBlocks) -> FlushBlocksReply:
    """Tell each node the next piece of what is left. Raises Rejected for a filter that is none."""
    directory = state.directory
    found = listing.select_replicas(directory, message.filter, now_s=state.now_s())
    num_done = num_left = left_bytes = num_without = 0
    for (node, tier), hashes in found.items():
        if tier != "dram":
            continue
        below = (node, message.to)
        is_there = set(found.get(below, ()))
        left = hashes if message.evict else [each for each in hashes if each not in is_there]
        num_done += len(hashes) - len(left)
        num_left += len(left)
        left_bytes += sum(directory.length_on((node, "dram"), each) for each in left)
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
        num_done=num_done, num_left=num_left, left_bytes=left_bytes, num_without=num_without
    )
