"""Membership: who is in the cluster, what it offers, and how loaded it is."""

from typing import Literal

import msgspec

from daemons.core.ids import Epoch, HostId, Incarnation, NodeId
from daemons.protocol.base import PROTOCOL_VERSION, Message, Record
from daemons.protocol.block import Tier
from daemons.protocol.cache import TierUsage
from daemons.protocol.segment import DataAddress, SegmentDescription

Role = Literal["master", "cachenode", "prefill", "decode", "gateway"]
NodeState = Literal["alive", "suspect", "dead"]


class Hello(Message, frozen=True, kw_only=True):
    """First message on a connection to any server; a server refuses another protocol version."""

    protocol_version: int = PROTOCOL_VERSION
    software: str = ""


class HelloReply(Message, frozen=True, kw_only=True):
    node: NodeId
    role: Role
    incarnation: Incarnation
    protocol_version: int = PROTOCOL_VERSION
    software: str = ""
    pid: int = 0


class ModelDescription(Record, frozen=True, kw_only=True):
    """A served model as its instances see it. Two instances share KV exactly when `namespace` is equal."""

    name: str
    namespace: bytes
    """16 bytes: root of the block-hash chain (fingerprint, dtype, layout, block_tokens, numerics id)."""
    dtype: str
    block_tokens: int
    chunk_tokens: int
    max_context_tokens: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    eos_token_ids: list[int]
    is_reuse_safe: bool
    """False when the start-up canary found that reuse could change a token here; `reuse_reason` says why."""
    reuse_reason: str = ""
    is_decode_canonical: bool = False

    @property
    def bytes_per_token(self) -> int:
        item = 4 if self.dtype == "float32" else 2
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * item


class NodeDescription(Record, frozen=True, kw_only=True):
    """What a process says of itself when it joins."""

    node: NodeId
    role: Role
    host: str
    host_id: HostId
    epoch: Epoch
    control: str
    """ZeroMQ endpoint of its own server, e.g. tcp://10.0.0.4:7802."""
    pid: int
    software: str
    data: DataAddress | None = None
    segments: list[SegmentDescription] = msgspec.field(default_factory=list)
    model: ModelDescription | None = None
    capacity_tokens: int = 0
    """KV arena of an instance."""
    metrics: str = ""
    """host:port of its /metrics, empty when off."""
    devices: list[str] = msgspec.field(default_factory=list)
    """NICs, RDMA devices and GPUs of its host, each a line for people."""
    ticks_ms: int = 0
    """Its clock when it said this; what it grants ends by this clock."""
    secret_mark: str = ""
    """Equal on nodes that have the same transfer.secret_file; empty without one."""
    domain: str = ""
    """What it shares the fate of: replicas of a block go to distinct domains. Empty: its host."""


class InstanceLoad(Record, frozen=True, kw_only=True):
    """What an instance measured of itself since it started, sent with every beat."""

    num_queued: int = 0
    num_running: int = 0
    queued_tokens: int = 0
    free_tokens: int = 0
    prefill_fixed_s: float = 0.0
    prefill_token_s: float = 0.0
    prefill_token_context_s: float = 0.0
    """Fit of prefill time: fixed + token * n + token_context * n * (context midpoint); zeros until measured."""
    decode_step_s: float = 0.0
    """Seconds from one token of a sequence to its next: a decode step, shared by the tokens that drafts bring."""
    load_token_s: float = 0.0
    """Seconds to load one token's KV from the pool."""
    is_draining: bool = False
    """It ends what it has, and refuses anything new."""
    decode_fixed_s: float = 0.0
    decode_sequence_s: float = 0.0
    decode_context_token_s: float = 0.0
    """Fit of the same: fixed + sequence * (sequences - 1) + context_token * (tokens of all their contexts)."""


class Join(Message, frozen=True, kw_only=True):
    """To the master: add me, or add me again. A cache node announces its blocks by reports after it."""

    node: NodeDescription
    incarnation_seen: Incarnation
    """Highest incarnation this node has met; a master with a lower one must step down."""


class JoinReply(Message, frozen=True, kw_only=True):
    incarnation: Incarnation
    beat_interval_ms: int


class Beat(Message, frozen=True, kw_only=True):
    """Every beat interval. `Unavailable` in reply means: join again."""

    node: NodeId
    epoch: Epoch
    load: InstanceLoad | None = None
    ticks_ms: int = 0
    """As in NodeDescription."""


class Leave(Message, frozen=True, kw_only=True):
    """Clean goodbye of a drained node; an admin says it for one that is dead."""

    node: NodeId
    epoch: Epoch


class ListNodes(Message, frozen=True):
    """To the master."""


class ListedNode(Record, frozen=True, kw_only=True):
    node: NodeDescription
    state: NodeState
    load: InstanceLoad | None
    used_bytes: int
    capacity_bytes: int
    num_blocks: int
    joined_s: float
    """Seconds since it joined this master."""
    last_beat_s: float
    tiers: dict[Tier, TierUsage] = msgspec.field(default_factory=dict)
    """Below DRAM, of a cache node that has them; device, of an instance."""
    is_draining: bool = False
    left_blocks: int | None = None
    """Of a draining node: what would be lost, or have fewer replicas than it should, if it stopped now.

    0: it is safe to stop. None: it is not draining, or not counted yet.
    """
    left_bytes: int = 0
    left_below_blocks: int = 0
    """Of `left_blocks`, those on its SSD or in its object tier alone, which are staged to be copied."""
    left_why: str = ""
    """What holds these up, where something does."""


class ListNodesReply(Message, frozen=True, kw_only=True):
    incarnation: Incarnation
    nodes: list[ListedNode]
    master: NodeDescription


class ListModels(Message, frozen=True):
    """To the master: what the live instances serve."""


class ListModelsReply(Message, frozen=True, kw_only=True):
    """By name; of several namespaces of one name the one to prefer comes first."""

    models: list[ModelDescription]


class NodeJoined(Message, frozen=True, kw_only=True):
    """Event."""

    node: NodeId
    role: Role
    incarnation: Incarnation = Incarnation(0)


class NodeLeft(Message, frozen=True, kw_only=True):
    """Event."""

    node: NodeId
    role: Role
    why: str
    incarnation: Incarnation = Incarnation(0)
