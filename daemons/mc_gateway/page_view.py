"""What the status page is told, of what the master said. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import msgspec

from daemons.protocol.block import Tier
from daemons.protocol.cache import CacheStatReply, TierUsage
from daemons.protocol.node import ListedNode, ListNodesReply
from daemons.protocol.request_list import ListedRequest

MAX_NODES: Final = 200
"""Listed; all are counted."""
_TIERS: Final[tuple[Tier, ...]] = ("dram", "ssd", "object")


class ShownTier(msgspec.Struct, frozen=True, kw_only=True):
    tier: str
    num_blocks: int
    used_bytes: int
    capacity_bytes: int


class ShownNode(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    role: str
    host: str
    state: str
    is_draining: bool
    num_running: int
    num_queued: int
    last_beat_s: float
    tiers: list[ShownTier]


class ShownRequest(msgspec.Struct, frozen=True, kw_only=True):
    """No tenant and no text: who may look at figures need not know whose they are."""

    request_id: str
    model: str
    state: str
    age_s: float
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    predicted_ttft_s: float | None
    actual_ttft_s: float | None
    prefill: str | None
    decode: str | None


class HitSample(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that were looked up since the sample before it, and those that were there."""

    age_s: float
    num_lookups: int
    num_hits: int


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """All of /status/data.json."""

    gateway: str
    software: str
    master: str
    incarnation: int
    why_unhealthy: str | None
    num_nodes: int
    num_blocks: int
    num_replicas: int
    num_pinned: int
    num_stored: int
    num_evicted: int
    num_lookups: int
    num_hits: int
    median_ttft_s: float | None
    blocks_by_model: dict[str, int]
    tiers: list[ShownTier]
    nodes: list[ShownNode]
    requests: list[ShownRequest]
    hits: list[HitSample]


@dataclass(frozen=True, slots=True)
class Look:
    """The master's answers to one look."""

    taken_s: float
    pool: CacheStatReply
    nodes: ListNodesReply
    requests: list[ListedRequest]


def shown(gateway: str, why_unhealthy: str | None, look: Look, hits: Sequence[HitSample]) -> Shown:
    """Of one look; `hits` are the oldest first."""
    pool, master = look.pool, look.nodes.master
    ttfts = [each.actual_ttft_s for each in look.requests if each.actual_ttft_s is not None]
    listed = sorted(look.nodes.nodes, key=lambda each: (each.node.role, each.node.node))
    # `num_blocks` of the pool counts a block once; a tier counts its replicas.
    dram = TierUsage(
        num_blocks=sum(each.num_blocks for each in listed if each.state != "dead"),
        used_bytes=pool.used_bytes,
        capacity_bytes=pool.capacity_bytes,
    )
    return Shown(
        gateway=gateway,
        software=master.software,
        master=master.control,
        incarnation=look.nodes.incarnation,
        why_unhealthy=why_unhealthy,
        num_nodes=len(listed),
        num_blocks=pool.num_blocks,
        num_replicas=pool.num_replicas,
        num_pinned=pool.num_pinned,
        num_stored=pool.num_stored,
        num_evicted=pool.num_evicted,
        num_lookups=pool.num_lookup_blocks,
        num_hits=pool.num_hit_blocks,
        median_ttft_s=median(ttfts) if ttfts else None,
        blocks_by_model=pool.blocks_by_model,
        tiers=_tiers(dram, pool.tiers),
        nodes=[_node(each) for each in listed[:MAX_NODES]],
        requests=[_request(each) for each in look.requests],
        hits=list(hits),
    )


def _node(listed: ListedNode) -> ShownNode:
    dram = TierUsage(
        num_blocks=listed.num_blocks,
        used_bytes=listed.used_bytes,
        capacity_bytes=listed.capacity_bytes,
    )
    load = listed.load
    return ShownNode(
        node=listed.node.node,
        role=listed.node.role,
        host=listed.node.host,
        state=listed.state,
        is_draining=listed.is_draining,
        num_running=load.num_running if load is not None else 0,
        num_queued=load.num_queued if load is not None else 0,
        last_beat_s=listed.last_beat_s,
        tiers=_tiers(dram, listed.tiers),
    )


def _tiers(dram: TierUsage, lower: Mapping[Tier, TierUsage]) -> list[ShownTier]:
    """Those that are there, the fastest first."""
    usage = {**lower, "dram": dram}
    return [
        ShownTier(
            tier=tier,
            num_blocks=usage[tier].num_blocks,
            used_bytes=usage[tier].used_bytes,
            capacity_bytes=usage[tier].capacity_bytes,
        )
        for tier in _TIERS
        if tier in usage and (usage[tier].capacity_bytes or usage[tier].num_blocks)
    ]


def _request(listed: ListedRequest) -> ShownRequest:
    return ShownRequest(
        request_id=listed.request_id,
        model=listed.model,
        state=listed.outcome,
        age_s=listed.age_s,
        prompt_tokens=listed.num_prompt_tokens,
        reused_tokens=listed.num_matched_tokens,
        generated_tokens=listed.num_generated_tokens,
        predicted_ttft_s=listed.predicted_ttft_s,
        actual_ttft_s=listed.actual_ttft_s,
        prefill=listed.prefill,
        decode=listed.decode,
    )
