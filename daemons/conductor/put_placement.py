"""Which cache node new blocks are offered to: on the host that makes them, with room, in turn among equals."""

from collections.abc import Sequence
from dataclasses import dataclass

from daemons.core.ids import HostId, NodeId
from daemons.protocol.node import NodeState

ROOM_STEP = 0.05
"""Nodes whose free share differs by less are equal."""


@dataclass(frozen=True, slots=True)
class PutNode:
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
    if not usable:
        return None

    def rank(node: PutNode) -> tuple[bool, bool, int, int, NodeId]:
        used = node.used_fraction
        return (
            used >= full,
            node.host_id != near,
            int(used / ROOM_STEP),
            node.last_chosen,
            node.node,
        )

    return min(usable, key=rank).node
