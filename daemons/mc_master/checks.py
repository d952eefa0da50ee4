"""Numbers a peer may send: in range, or the message is refused before it can harm a table."""

from collections.abc import Sequence

from daemons.core.errors import ProtocolError
from daemons.core.ids import NodeId
from daemons.protocol.node import Join, ModelDescription, NodeDescription
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.protocol.report import Report, Shortage
from daemons.protocol.request import Schedule
from daemons.protocol.segment import MAX_SEGMENT_NUMBER, SegmentDescription
from daemons.store.directory.names import MAX_INCARNATION
from daemons.store.directory.report_check import check_sealed

MAX_NODE_BYTES = 1 << 50
"""1 PiB lent by one node; sums over all nodes still fit the wire's 64 bits."""
MAX_TOKENS = 1 << 31
MAX_SEQUENCE = 1 << 62
MAX_PRIORITY = 10


def check_join(message: Join) -> None:
    if not 0 <= message.incarnation_seen <= MAX_INCARNATION:
        raise ProtocolError(
            f"node {message.node.node} has seen incarnation {message.incarnation_seen}"
        )
    check_node(message.node)


def check_node(node: NodeDescription) -> None:
    if not node.node or len(node.node) > 255:
        raise ProtocolError("a node id has 1 to 255 characters")
    check_segments(node.node, node.segments)
    if not 0 <= node.capacity_tokens <= MAX_TOKENS:
        raise ProtocolError(f"node {node.node} has a KV arena of {node.capacity_tokens} tokens")
    if node.model is not None:
        _check_model(node.model)


def check_segments(node: NodeId, segments: Sequence[SegmentDescription]) -> None:
    capacities = [segment.capacity_bytes for segment in segments]
    if capacities and (min(capacities) < 0 or sum(capacities) > MAX_NODE_BYTES):
        raise ProtocolError(f"node {node} lends segments of {capacities} bytes")
    numbers = [segment.number for segment in segments]
    if numbers and (numbers[0] != 0 or min(numbers) < 0 or max(numbers) > MAX_SEGMENT_NUMBER):
        raise ProtocolError(f"node {node} lends segments numbered {numbers}")


def check_report(report: Report) -> None:
    check_sealed(report.sealed)
    if not (
        0 <= report.used_bytes <= MAX_NODE_BYTES and 0 <= report.capacity_bytes <= MAX_NODE_BYTES
    ):
        raise ProtocolError(
            f"node {report.node} reports {report.used_bytes} of {report.capacity_bytes} bytes in use"
        )
    if not 0 <= report.sequence <= MAX_SEQUENCE:
        raise ProtocolError(f"node {report.node} sent report number {report.sequence}")
    if not 0 <= report.read_bytes_per_s <= MAX_NODE_BYTES:
        raise ProtocolError(f"node {report.node} reads {report.read_bytes_per_s} bytes a second")
    if not 0 <= report.refused_puts <= MAX_SEQUENCE:
        raise ProtocolError(f"node {report.node} refused {report.refused_puts} puts")
    for shortage in report.short_of:
        _check_shortage(report.node, shortage)


def _check_shortage(node: NodeId, shortage: Shortage) -> None:
    num_slots, slot_bytes = shortage.num_slots, shortage.slot_bytes
    if not 0 < slot_bytes <= MAX_NODE_BYTES or not 0 < num_slots <= MAX_NODE_BYTES // slot_bytes:
        raise ProtocolError(f"node {node} is short of {num_slots} slots of {slot_bytes} bytes")
    if any(len(each) != HASH_BYTES for slab in shortage.slabs for each in slab):
        raise ProtocolError(f"node {node} names blocks by something else than {HASH_BYTES} bytes")


def check_schedule(message: Schedule) -> None:
    if not 0 < message.num_prompt_tokens < MAX_TOKENS or not 0 <= message.max_tokens < MAX_TOKENS:
        raise ProtocolError(
            f"num_prompt_tokens {message.num_prompt_tokens} or max_tokens {message.max_tokens} is out of range"
        )
    if abs(message.priority) > MAX_PRIORITY:
        raise ProtocolError(f"priority {message.priority} is not within -10 to 10")


def _check_model(model: ModelDescription) -> None:
    if not 0 < model.block_tokens <= MAX_TOKENS or not 0 < model.max_context_tokens <= MAX_TOKENS:
        raise ProtocolError(
            f"model {model.name!r} has blocks of {model.block_tokens} tokens and a context of "
            f"{model.max_context_tokens}"
        )
