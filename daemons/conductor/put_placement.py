"""Which cache node new blocks are offered to: on the host that makes them, with room, in turn among equals.

The emptiest gets one turn more in each round. So a node that joins fills up faster than the others, and still gets
less than twice its share: new blocks are hot, and all of them on one node would make it the bottleneck.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from daemons.core.ids import HostId, NodeId
from daemons.protocol.node import NodeState

ROOM_STEP = 0.05
"""Nodes whose free share differs by less are equal."""


@dataclass(slots=True)
class PutNode:
    """`last_chosen` is the number of the last plan that named it. Not frozen: one is made for each node at each put."""

    node: NodeId
    host_id: HostId
    state: NodeState
    used_bytes: int
    capacity_bytes: int
    last_chosen: int

    def is_open(self, full: float) -> bool:
        """Healthy, and not full."""
        return self.state == "alive" and self.used_fraction < full

    @property
    def used_fraction(self) -> float:
        return self.used_bytes / self.capacity_bytes if self.capacity_bytes else 1.0


def choose_put_target(nodes: Sequence[PutNode], *, near: HostId, full: float) -> NodeId | None:
    """None when no cache node is up. `full`: share in use from which a node counts as full and others come first."""
    usable = [n for n in nodes if n.state == "alive"] or [n for n in nodes if n.state == "suspect"]
    usable = [n for n in usable if n.used_fraction < full] or usable
    usable = [n for n in usable if n.host_id == near] or usable
    if len(usable) < 2:
        return usable[0].node if usable else None
    num_turns = len(usable) + 1
    is_extra_turn = max(n.last_chosen for n in usable) % num_turns == num_turns - 1

    def rank(node: PutNode) -> tuple[int, int, int, NodeId]:
        room = int(node.used_fraction / ROOM_STEP)
        return room if is_extra_turn else 0, node.last_chosen, room, node.node

    return min(usable, key=rank).node
