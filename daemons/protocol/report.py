"""What a node tells the master: what it holds of each tier, and how full that is."""

import msgspec

from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.base import Message
from daemons.protocol.block import DeadName, Tier, Tombstone
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.pin import Pin
from daemons.protocol.segment import SegmentDescription


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has no slot for though it is not full: its memory is cut into slots of one size a slab."""

    slot_bytes: int
    num_slots: int
    """Of this size, that are to be free."""
    slabs: list[list[BlockHash]] = msgspec.field(default_factory=list)
    """Of slots of other sizes, all that lies in each: where all of one may go, its memory serves any size again."""


class Report(Message, frozen=True, kw_only=True):
    """Cache node to master, batched: what was sealed and freed in a tier since the last one, and how full that is. An
    instance reports the tier device alone: names of blocks in its KV arena, without a place and not to be counted on.

    `sequence` grows by one per report in one (node epoch, incarnation), whatever the tier; a gap makes the master ask
    for an announcement. What moves down is reported as sealed there before it is reported as freed above.
    """

    node: NodeId
    epoch: int
    sequence: int
    sealed: SealedBlocks
    freed: list[BlockHash]
    used_bytes: int
    capacity_bytes: int
    refused_puts: int = 0
    bad: list[BlockHash] = msgspec.field(default_factory=list)
    """Freed as well, not listed there: the node found that their bytes are no longer what was sealed."""
    cleared: list[Tombstone] = msgspec.field(default_factory=list)
    """With the first report of an announcement: the clears this node remembers, for a master that is new."""
    tier: Tier = "dram"
    read_bytes_per_s: int = 0
    """Of the tier, as measured of late; 0: not known."""
    pins: list[Pin] = msgspec.field(default_factory=list)
    """With the first report of an announcement: what a master before this one had pinned here, as it was asked."""
    dead: list[DeadName] = msgspec.field(default_factory=list)
    """Names that this node has logged as dead since; during an announcement all that it remembers."""
    is_announcing: bool = False
    """More of what was here before the announcement began is to come."""
    segments: list[SegmentDescription] = msgspec.field(default_factory=list)
    """All that the node lends in DRAM, when that has changed since it joined or said it last; else empty."""
    short_of: list[Shortage] = msgspec.field(default_factory=list)
    """Of the tier DRAM alone."""
    is_opening: bool = False
    """What lies in one of its tiers is not known or not told yet: an object store that has not answered."""


class ReportReply(Message, frozen=True, kw_only=True):
    """`victims`: blocks to free in DRAM now, chosen by the master; `announce`: start again from nothing."""

    victims: list[BlockHash] = msgspec.field(default_factory=list)
    fitting: list[BlockHash] = msgspec.field(default_factory=list)
    """As `victims`, for what the node is short of."""
    announce: bool = False
    unwanted: list[BlockHash] = msgspec.field(default_factory=list)
    """Cleared while the node was away: to be deleted from all its tiers."""
    leased_bytes: int = 0
    pinned_bytes: int = 0
    """Why there are not enough victims: hard pins, and what readers hold beside them. 0 where there are enough."""
