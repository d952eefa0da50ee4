"""Blocks in the pool: put, seal, free, and what a node forgets. Bytes never travel here; they are read where a Source
says.
"""

from typing import Annotated, Final, Literal

import msgspec

from daemons.core.ids import BlockHash, HostId, NodeId, PutId
from daemons.protocol.base import Message, Record
from daemons.protocol.segment import RegionRef, Source

Tier = Literal["device", "dram", "ssd", "object"]
RemovalReason = Literal["evicted", "cleared", "node_left", "bad"]
MAX_HASHES: Final = 65_536
"""Of one look-up: a million tokens in the smallest blocks. Each costs its server 10 us, in which it answers nobody."""
Hashes = Annotated[list[BlockHash], msgspec.Meta(max_length=MAX_HASHES)]
PutStatus = Literal["stored", "already_sealed", "being_written", "conflict", "exhausted", "failed"]


class BlockMeta(Record, frozen=True, kw_only=True):
    """What the directory and the node's index know of a block beside where it is."""

    hash: BlockHash
    parent: BlockHash
    namespace: bytes
    depth: int
    """Blocks before this one in its prefix; eviction drops the deepest first among equals."""
    num_tokens: int
    model: str
    tenant: str = ""
    name: bytes = b""
    """Of an object in `namespace`; empty for KV and for the chunks of an object."""
    value_bytes: int = 0
    """Of the whole object, whose chunks may lie elsewhere."""


MAX_REPLICAS: Final = 8
"""Of one block: what anybody may ask for."""


MAX_INLINE_BYTES: Final = 16 * 1024
"""Of all values of one Put: up to here they may come in it, as the `tail` of their blocks, and nothing is pulled."""
MAX_TAIL_BYTES: Final = 4096
"""Behind a value."""


class PutBlock(Record, frozen=True, kw_only=True):
    """One block to pull. `source.ranges` has one row per (layer, k|v); checksums are per layer (xxh3-64).

    With `piece_bytes` the payload is any one run of bytes, which may be empty, and then `tail`, and a "layer" is a
    piece of so many bytes, the last one shorter. `version` is of an object or of a chunk of one, as the master gave it;
    0 for KV.
    """

    meta: BlockMeta
    source: Source
    num_layers: int
    checksums: list[int] | None = None
    version: int = 0
    piece_bytes: int = 0
    tail: bytes = b""
    wanted: int = 0
    """Replicas it should have; 0: as many as the pool wants. The put is answered when the first is sealed."""
    object_name: bytes = b""
    """Of a chunk: the object that it belongs to, by which the node knows that it is the putter's own."""


class Put(Message, frozen=True, kw_only=True):
    """To a cache node: pull and seal these. Repeating a `put_id` gives the first answer again."""

    put_id: PutId
    blocks: list[PutBlock]
    wants_locations: bool = False


class BlockLocation(Record, frozen=True, kw_only=True):
    """A sealed replica: payload `[layer][k|v][token][kv_head][head_dim]` then the trailer, at `offset`."""

    hash: BlockHash
    node: NodeId
    region: RegionRef
    offset: int
    length: int
    trailer_bytes: int
    version: int
    seal_checksum: int
    """xxh3-64 of the trailer, which itself holds a checksum per layer: what a reader verifies against."""
    num_layers: int
    tier: Tier = "dram"
    """Below dram nothing lies at `offset`: Stage it at `control` first."""
    host_id: HostId = HostId("")
    control: str = ""


class PutReply(Message, frozen=True, kw_only=True):
    """One status per block, in order; `why` explains the ones that were refused."""

    results: list[PutStatus]
    why: str = ""
    retry_after_ms: int | None = None
    locations: list[BlockLocation] = msgspec.field(default_factory=list)
    """As wanted: of those that are sealed here now, so that who put them can read them at once."""


class BlockFilter(Record, frozen=True, kw_only=True):
    """Which blocks an operator means; unset fields match all."""

    model: str | None = None
    tenant: str | None = None
    hash_prefix: str | None = None
    """Hex digits."""
    older_than_s: float | None = None
    node: NodeId | None = None
    hashes: tuple[BlockHash, ...] | None = None
    """Only these."""


class Tombstone(Record, frozen=True, kw_only=True):
    """A clear that is past: what it matched and was sealed before it is not to come back."""

    filter: BlockFilter
    age_ms: int


class DeadName(Record, frozen=True, kw_only=True):
    """No version of this object up to `version` is to come back: it was deleted or replaced."""

    key: BlockHash
    version: int
    age_ms: int = 0


class SealedBlock(Record, frozen=True, kw_only=True):
    """A node's record of one sealed block in its segment."""

    meta: BlockMeta
    offset: int
    length: int
    trailer_bytes: int
    version: int
    seal_checksum: int
    num_layers: int
    age_ms: int = 0
    """Time since it was sealed, which may be in an earlier life of the node."""
    wanted: int = 0
    """Replicas it should have; 0: as many as the pool wants."""


class FreeBlocks(Message, frozen=True, kw_only=True):
    """Notice from the master to a cache node: free these and report them.

    Deleted from all tiers, or else evicted from DRAM, which may write them to a lower tier first.
    """

    hashes: list[BlockHash]
    is_deletion: bool = False


class RememberClear(Message, frozen=True, kw_only=True):
    """Notice from the master to every cache node: this was cleared; log it, and tell later masters. To an instance:
    what it was computing then is not to stay in its arena.
    """

    filter: BlockFilter
    age_ms: int = 0


class ForgetNames(Message, frozen=True, kw_only=True):
    """Notice from the master to a cache node: free these versions and older ones, log it, and tell later masters."""

    names: list[DeadName]


class BadReplica(Message, frozen=True, kw_only=True):
    """Reader to master, passed on to the node: this replica did not verify; the node checks before it drops it."""

    hash: BlockHash
    node: NodeId
    why: str


class SuspectNode(Message, frozen=True, kw_only=True):
    """Reader to master: a read from this life of the node failed. Others are preferred until its next beat."""

    node: NodeId
    epoch: int
    why: str
