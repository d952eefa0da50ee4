"""Waiting for the cluster to get somewhere: replicas made, blocks moved, a node drained, all nodes up.

The master is asked again and again, and says each time what is left. Nothing gets on for too long: it says so.
"""

import time
from collections.abc import Callable
from typing import Final

import msgspec

from daemons.client.cluster import ClusterClient
from daemons.core.errors import NotFound, Rejected, Unavailable
from daemons.core.ids import NodeId
from daemons.core.units import format_count, format_size
from daemons.protocol.node import ListedNode, ListNodesReply
from daemons.protocol.replication import ReplicateReply

POLL_S: Final = 0.2
STUCK_S: Final = 20.0
"""Without one more block copied there will be none: the other nodes are full, or cannot reach the one that has them."""

Progress = Callable[[str], object]


def until_copied(ask: Callable[[], ReplicateReply], progress: Progress) -> ReplicateReply:
    """The last answer, with the number of blocks of the first: what has left a node is not asked of it any more.

    Raises Unavailable when no more copies are made, or some were given up.
    """
    reply = ask()
    num_blocks = reply.num_blocks
    best, moved_s = reply.num_left, time.monotonic()
    while reply.num_left:
        progress(f"{reply.num_left} of {format_count(reply.num_blocks, 'block')} left")
        time.sleep(POLL_S)
        reply = ask()
        if reply.num_left < best:
            best, moved_s = reply.num_left, time.monotonic()
        elif time.monotonic() - moved_s > STUCK_S:
            raise Unavailable(
                f"{reply.num_left} blocks are left and none was copied for {STUCK_S:g} s; nodes that are full take "
                "none (`mcctl node list`), and the logs of the cache nodes say what failed"
            )
    if reply.num_failed:
        raise Unavailable(f"{reply.num_failed} blocks could not be moved and stay: {reply.why}")
    return msgspec.structs.replace(reply, num_blocks=max(num_blocks, reply.num_blocks))


def until_drained(
    client: ClusterClient, node: NodeId, timeout_s: float | None, progress: Progress
) -> ListedNode:
    """Until the node can be stopped without losing a block. Raises NotFound, Rejected, Unavailable."""
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    best, moved_s = None, time.monotonic()
    while True:
        listed = _find(client.nodes(), node)
        if not listed.is_draining:
            raise Rejected(f"node {node} is not draining; `mcctl node drain {node}` begins it")
        left = listed.left_blocks
        if left == 0 and listed.state != "dead":
            return listed
        now_s = time.monotonic()
        if left is not None and (best is None or left < best):
            best, moved_s = left, now_s
        text = "blocks not counted yet" if left is None else _left_text(listed)
        progress(text)
        if deadline_s is not None and now_s >= deadline_s:
            raise Unavailable(
                f"node {node} is not drained within {timeout_s:g} s: {text}; {_still(node)}"
            )
        if deadline_s is None and now_s - moved_s > STUCK_S:
            raise Unavailable(
                f"node {node} is not drained: {text}, and none was copied for {STUCK_S:g} s; `mcctl node list` shows "
                f"what room there is, the logs of the cache nodes what failed; {_still(node)}"
            )
        time.sleep(POLL_S)


def until_ready(
    ask: Callable[[], ListNodesReply], num_nodes: int, timeout_s: float, progress: Progress
) -> ListNodesReply:
    """Until the master answers, at least so many nodes have joined, and all that have are alive."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            reply = ask()
        except Unavailable as error:
            text = error.message
        else:
            ill = [
                f"{each.node.node} is {each.state}" for each in reply.nodes if each.state != "alive"
            ]
            if not ill and len(reply.nodes) >= num_nodes:
                return reply
            text = (
                ", ".join(ill) or f"{len(reply.nodes)} of {format_count(num_nodes, 'node')} joined"
            )
        progress(text)
        if time.monotonic() >= deadline_s:
            raise Unavailable(
                f"not ready within {timeout_s:g} s: {text}; mcctl status says what that means"
            )
        time.sleep(POLL_S)


def _find(reply: ListNodesReply, node: NodeId) -> ListedNode:
    for listed in reply.nodes:
        if listed.node.node == node:
            return listed
    names = ", ".join(sorted(listed.node.node for listed in reply.nodes))
    raise NotFound(f"no node {node}; those in the cluster: {names or 'none'}")


def _still(node: NodeId) -> str:
    return f"{node} is still draining; `mcctl node undrain {node}` takes it back"


def _left_text(listed: ListedNode) -> str:
    """What is left, how much of that must be staged, and what holds it up."""
    blocks = format_count(listed.left_blocks or 0, "block")
    text = f"{blocks} ({format_size(listed.left_bytes)}) left"
    if listed.left_below_blocks:
        text += f", {listed.left_below_blocks} of them below its DRAM"
    return f"{text}; {listed.left_why}" if listed.left_why else text
