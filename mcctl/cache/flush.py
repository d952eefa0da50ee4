"""Having the pool write blocks to a lower tier, and waiting until it has: the master says each time what is left."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from daemons.client.cluster import ClusterClient
from daemons.core.errors import NotFound, Unavailable
from daemons.core.units import format_count, format_size, format_usage
from daemons.protocol.block import BlockFilter, Tier
from daemons.protocol.cache import FlushBlocksReply

_POLL_S: Final = 0.1
_STUCK_S: Final = 15.0
"""Without one more block written the nodes are not going to: full, resting after a failure, or told never to."""
_MAX_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class FlushPlan:
    """What to write where; with `evict` it then leaves DRAM."""

    chosen: BlockFilter
    to: Tier
    evict: bool


def begin(client: ClusterClient, plan: FlushPlan) -> FlushBlocksReply:
    """Tell the nodes. Raises NotFound where no node has such a tier."""
    reply = client.flush_blocks(plan.chosen, to=plan.to, evict=plan.evict)
    if reply.num_left and reply.num_without == reply.num_left:
        key = "ssd.directory" if plan.to == "ssd" else "object.bucket"
        raise NotFound(
            f"no node that holds these {reply.num_left} blocks has an {plan.to} tier; set {key} of mc-cachenode"
            + (", or mcctl cluster up --ssd-directory DIR" if plan.to == "ssd" else "")
        )
    return reply


def wait(
    client: ClusterClient, plan: FlushPlan, progress: Callable[[str], object]
) -> FlushBlocksReply:
    """Until nothing is left that a node could write. Raises Unavailable when they stop getting on, or some are dead."""
    reply = begin(client, plan)
    best, moved_s = reply.num_left, time.monotonic()
    while reply.num_left > reply.num_without:
        progress(f"{format_count(reply.num_left, 'block')} left, {format_size(reply.left_bytes)}")
        time.sleep(_POLL_S)
        reply = client.flush_blocks(plan.chosen, to=plan.to, evict=plan.evict)
        if reply.num_left < best:
            best, moved_s = reply.num_left, time.monotonic()
        elif time.monotonic() - moved_s > _STUCK_S:
            raise Unavailable(
                f"{reply.num_left} blocks ({format_size(reply.left_bytes)}) are left and none was written for "
                f"{_STUCK_S:g} s: {_where_left(client, plan, reply)}. They stay where they are. A tier that is full of "
                f"what was flushed takes no more: raise {plan.to}.capacity, or flush fewer. Else see the nodes' logs, "
                f"and their keys {plan.to}.flush and {plan.to}.flush_models"
            )
    dead = dead_nodes(client, plan)
    if dead:
        raise Unavailable(f"{format_count(reply.num_done, 'block')} in the {plan.to} tier; {dead}")
    return reply


def dead_nodes(client: ClusterClient, plan: FlushPlan) -> str:
    """Which of those that are meant cannot be told now, and what to do; empty where there is none."""
    dead = sorted(
        each.node.node
        for each in client.nodes().nodes
        if each.node.segments
        and each.state == "dead"
        and plan.chosen.node in (None, each.node.node)
    )
    if not dead:
        return ""
    more = ", ..." if len(dead) > _MAX_NAMED else ""
    return (
        f"what dead nodes hold is not written: {', '.join(dead[:_MAX_NAMED])}{more}. Start them and flush again, or "
        "forget those that are not to come back (mcctl node remove)"
    )


def _where_left(client: ClusterClient, plan: FlushPlan, reply: FlushBlocksReply) -> str:
    """The nodes that have most of it, and what the master says of each."""
    known = {each.node.node: each for each in client.nodes().nodes}
    most = sorted(reply.left_by_node.items(), key=lambda item: -item[1])[:_MAX_NAMED]
    told = []
    for name, num_left in most:
        node = known.get(name)
        tier = None if node is None else node.tiers.get(plan.to)
        space = f", {plan.to} {format_usage(tier.used_bytes, tier.capacity_bytes)}" if tier else ""
        told.append(f"{num_left} on {name} ({'gone' if node is None else node.state}{space})")
    return ", ".join(told)
