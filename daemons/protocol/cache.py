"""What is asked of the pool as a whole: list, count, write to a lower tier, clear."""

import msgspec

from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.base import Message, Record
from daemons.protocol.block import BlockFilter, BlockMeta, Tier
from daemons.protocol.pin import PinLevel


class FlushBlocks(Message, frozen=True, kw_only=True):
    """To the master: write what the filter matches to the tier `to`; with `evict` free it in DRAM once it is there.

    Answered at once: nodes work on it while the same message, sent again, says what is left.
    """

    filter: BlockFilter
    to: Tier = "ssd"
    evict: bool = False


class FlushBlocksReply(Message, frozen=True, kw_only=True):
    """`num_done` of the blocks that match are in the tier and, with `evict`, no longer in DRAM."""

    num_done: int
    num_left: int
    left_bytes: int
    num_without: int = 0
    """Of those left, on nodes without such a tier: they stay."""
    left_by_node: dict[NodeId, int] = msgspec.field(default_factory=dict)


class ListBlocks(Message, frozen=True, kw_only=True):
    """Pages through the directory; `after` is the last hash of the page before."""

    filter: BlockFilter
    after: BlockHash | None = None
    limit: int = 1000


class ListedBlock(Record, frozen=True, kw_only=True):
    meta: BlockMeta
    nodes: list[NodeId]
    length: int
    age_s: float
    idle_s: float
    is_leased: bool
    tier: Tier = "dram"
    """Of the fastest replica."""
    tiers: list[Tier] = msgspec.field(default_factory=list)
    """Of each entry of `nodes`; a node with a block in two tiers is there twice."""
    pin: PinLevel = "none"
    pin_left_s: float = 0.0
    wanted: int = 1
    """Replicas it should have; 0 for one that is in no tier of the pool."""

    def on_devices(self, nodes: list[NodeId]) -> "ListedBlock":
        """The same, with these instances first, which hold it in their KV arenas."""
        tiers: list[Tier] = ["device"] * len(nodes)
        return msgspec.structs.replace(
            self, nodes=[*nodes, *self.nodes], tiers=[*tiers, *self.tiers], tier="device"
        )


class ListBlocksReply(Message, frozen=True, kw_only=True):
    blocks: list[ListedBlock]
    has_more: bool


class ClearBlocks(Message, frozen=True, kw_only=True):
    """Delete what the filter matches; answered when the nodes freed it, or at the deadline with what is left."""

    filter: BlockFilter


class ClearBlocksReply(Message, frozen=True, kw_only=True):
    num_cleared: int
    num_left: int = 0
    cleared_bytes: int = 0


class TierUsage(Record, frozen=True, kw_only=True):
    """How full one tier is, of a node or of all."""

    num_blocks: int
    used_bytes: int
    capacity_bytes: int
    read_bytes_per_s: int = 0
    """Of one node's, as it measured; 0: not yet."""


class CacheStat(Message, frozen=True):
    """To the master: totals of the pool."""


class CacheStatReply(Message, frozen=True, kw_only=True):
    num_blocks: int
    num_replicas: int
    used_bytes: int
    capacity_bytes: int
    num_leased: int
    num_lookups: int
    num_lookup_blocks: int
    num_hit_blocks: int
    num_stored: int
    num_evicted: int
    num_cleared: int
    blocks_by_model: dict[str, int]
    tiers: dict[Tier, TierUsage] = msgspec.field(default_factory=dict)
    num_pinned: int = 0
    """Blocks that a pin holds, soft or hard."""
