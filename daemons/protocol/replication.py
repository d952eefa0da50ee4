"""How many replicas blocks have, and where: copies between cache nodes, which the target pulls, and draining a node."""

from typing import Final

import msgspec

from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.base import Message, Record
from daemons.protocol.block import BlockFilter, BlockLocation, BlockMeta

MAX_AWAITED: Final = 10_000
"""In one AwaitReplicas."""


class CopyOrder(Record, frozen=True, kw_only=True):
    """One block to copy from a peer's segment, under the same version, seal and age."""

    meta: BlockMeta
    source: BlockLocation
    age_ms: int = 0
    wanted: int = 0
    """As in SealedBlock."""


class CopyBlocks(Message, frozen=True, kw_only=True):
    """Notice from the master to a cache node: pull these from peers, seal and report them, or say CopyFailed."""

    copies: list[CopyOrder]


class CopyFailed(Message, frozen=True, kw_only=True):
    """Cache node to master: these were not copied."""

    node: NodeId
    epoch: int
    hashes: list[BlockHash]
    why: str


class ReplicateBlocks(Message, frozen=True, kw_only=True):
    """To the master: how many replicas the matching blocks should have; copies are made in the background.

    `prefer` names nodes that come first as targets. Said again it counts anew; 0 is what the pool wants.
    """

    filter: BlockFilter
    count: int
    prefer: list[NodeId] = msgspec.field(default_factory=list)


class MoveBlocks(Message, frozen=True, kw_only=True):
    """To the master: copy the matching blocks of `filter.node`, or of all nodes, to this node, then delete them there.

    Said again it tells how far it is; what was given up is not tried again within half a minute.
    """

    filter: BlockFilter
    to: NodeId


class ReplicateReply(Message, frozen=True, kw_only=True):
    """How many blocks matched, and how many copies of them are still to be made: send the message again to see."""

    num_blocks: int
    num_left: int
    num_domains: int = 0
    """More replicas than that of one block cannot be."""
    num_failed: int = 0
    """Moves that were given up a moment ago; asked for later they are tried again."""
    why: str = ""
    """Of one of those."""


class AwaitReplicas(Message, frozen=True, kw_only=True):
    """To the master: answered when each block is sealed on so many hosts, or shortly before the deadline."""

    hashes: list[BlockHash]
    versions: list[int]
    """Of each: older replicas do not count."""
    count: int


class AwaitReplicasReply(Message, frozen=True, kw_only=True):
    counts: list[int]
    """On how many hosts each is."""


class RememberWanted(Message, frozen=True, kw_only=True):
    """Notice from the master to a cache node: log how many replicas these should have, and tell later masters."""

    hashes: list[BlockHash]
    count: int


class DrainNode(Message, frozen=True, kw_only=True):
    """To the master: nothing new goes to this cache node, and what only it holds is copied to others; or the end of it.

    Kept over restarts of master and node. ListNodes says when the node can be stopped without losing a block.
    """

    node: NodeId
    is_draining: bool
