"""What a cache of so many tokens would find of a trace: one pool for all, requests in order, nothing else modelled."""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest

UNLIMITED = 0


class CapacityPoint(msgspec.Struct, frozen=True, kw_only=True):
    """`hit_fraction` of all prompt tokens; `capacity_tokens` 0 is a cache without end."""

    capacity_tokens: int
    hit_fraction: float


def hit_curve(requests: Sequence[TraceRequest], capacities: Sequence[int]) -> list[CapacityPoint]:
    """Least recently used goes first, and of one prefix its end."""
    return [
        CapacityPoint(capacity_tokens=capacity, hit_fraction=hit_fraction(requests, capacity))
        for capacity in capacities
    ]


def hit_fraction(requests: Sequence[TraceRequest], capacity_tokens: int) -> float:
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
