"""What a cache of so many tokens would find of a trace: one pool for all, requests in order, nothing else modelled.

Least recently used is done exactly, block by block. The other policies are the live directory's, which evicts as
mc-master does: from the high watermark on, a twentieth at a time.
"""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from daemons.core.ids import NodeId
from daemons.simulation.pool import SimulatedPool
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest

_NODE = NodeId("pool")


class CapacityPoint(msgspec.Struct, frozen=True, kw_only=True):
    """`hit_fraction` of all prompt tokens; `capacity_tokens` 0 is a cache without end."""

    capacity_tokens: int
    hit_fraction: float
    eviction: str = "lru"


def hit_curve(
    requests: Sequence[TraceRequest], capacities: Sequence[int], eviction: str = "lru"
) -> list[CapacityPoint]:
    return [
        CapacityPoint(
            capacity_tokens=capacity,
            hit_fraction=hit_fraction_with(requests, capacity, eviction),
            eviction=eviction,
        )
        for capacity in capacities
    ]


def hit_fraction_with(
    requests: Sequence[TraceRequest], capacity_tokens: int, eviction: str
) -> float:
    """Under a policy of the live directory."""
    if eviction == "lru" or not capacity_tokens:
        return hit_fraction(requests, capacity_tokens)
    pool = SimulatedPool([_NODE], capacity_tokens, eviction)
    num_hits = 0
    for request in requests:
        now_s = request.arrival_s
        rows = pool.directory.find_prefix(pool.hashes(request.blocks), now_s=now_s)
        pool.take(rows, len(request.blocks), _NODE, now_s)
        pool.store(_NODE, request.blocks, len(rows), now_s=now_s)
        num_hits += len(rows)
    return num_hits * BLOCK_TOKENS / max(1, sum(request.input_tokens for request in requests))


def hit_fraction(requests: Sequence[TraceRequest], capacity_tokens: int) -> float:
    """Least recently used goes first, and of one prefix its end."""
    room = capacity_tokens // BLOCK_TOKENS if capacity_tokens else None
    cached: OrderedDict[int, None] = OrderedDict()
    num_hits = 0
    for request in requests:
        for block in request.blocks:
            if block not in cached:
                break
            num_hits += 1
        for block in reversed(request.blocks):
            cached[block] = None
            cached.move_to_end(block)
        while room is not None and len(cached) > room:
            cached.popitem(last=False)
    return num_hits * BLOCK_TOKENS / max(1, sum(request.input_tokens for request in requests))


def num_distinct_tokens(requests: Sequence[TraceRequest]) -> int:
    """What a cache without end would hold."""
    return BLOCK_TOKENS * len({block for request in requests for block in request.blocks})
