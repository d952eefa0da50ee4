"""The DRAM segments of cache nodes, as an operator asks each node for them; the master is not needed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from daemons.client.identity import open_client_identity
from daemons.core.errors import McError, NotFound, ProtocolError
from daemons.core.ids import NodeId
from daemons.protocol.base import Message
from daemons.protocol.node import ListedNode
from daemons.protocol.segment import (
    AddSegment,
    ListSegments,
    ListSegmentsReply,
    RemoveSegment,
    SegmentReply,
    SegmentState,
)
from daemons.rpc import SyncClient

ReplyType = TypeVar("ReplyType", bound=Message)


class NodeSegments:
    """Of one node, at its control endpoint. Each method raises what the node answers with, or Unavailable.

    `key_file` is needed where nodes have keys, as for `ClusterClient`.
    """

    def __init__(self, control: str, timeout_s: float, key_file: Path | None = None) -> None:
        self._control = control
        self._timeout_s = timeout_s
        self._identity = open_client_identity(key_file) if "#" in control else None

    def states(self) -> list[SegmentState]:
        """By number."""
        return self._ask(ListSegments(), ListSegmentsReply).segments

    def find(self, number: int) -> SegmentState | None:
        return next((each for each in self.states() if each.number == number), None)

    def add(self, size_bytes: int, directory: str = "") -> SegmentState:
        """Begin; `find` says how far it is."""
        return self._ask(
            AddSegment(size_bytes=size_bytes, directory=directory), SegmentReply
        ).segment

    def remove(self, number: int) -> SegmentState:
        """Begin; it is gone when `find` finds none."""
        return self._ask(RemoveSegment(number=number), SegmentReply).segment

    def _ask(self, message: Message, reply_type: type[ReplyType]) -> ReplyType:
        with SyncClient(self._control, self._timeout_s, self._identity) as client:
            reply = client.request(message)
        if not isinstance(reply, reply_type):
            raise ProtocolError(
                f"{self._control} answered {type(message).__name__} with {type(reply).__name__}; is it mc-cachenode?"
            )
        return reply


def lenders(nodes: Sequence[ListedNode]) -> list[ListedNode]:
    """The cache nodes among them."""
    return [each for each in nodes if each.node.role == "cachenode"]


def lender(nodes: Sequence[ListedNode], node: NodeId) -> ListedNode:
    """Raises NotFound."""
    found = next((each for each in lenders(nodes) if each.node.node == node), None)
    if found is None:
        names = ", ".join(sorted(each.node.node for each in lenders(nodes)))
        raise NotFound(f"no cache node {node}; those in the cluster: {names or 'none'}")
    return found


def states_of(
    node: ListedNode, timeout_s: float, key_file: Path | None = None
) -> tuple[list[SegmentState], str]:
    """(its segments, ""); or what it told the master before, and why it does not answer now."""
    try:
        return NodeSegments(node.node.control, timeout_s, key_file).states(), ""
    except McError as error:
        known = [
            SegmentState(
                number=each.number,
                path=each.path,
                status="mounted",
                capacity_bytes=each.capacity_bytes,
                done_bytes=each.capacity_bytes,
            )
            for each in node.node.segments
        ]
        return known, error.message
