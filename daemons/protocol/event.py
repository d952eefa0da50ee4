"""What the master publishes, and how a reader gets again what it missed."""

import msgspec

from daemons.core.ids import BlockHash, Incarnation, NodeId
from daemons.protocol.base import Message, Record
from daemons.protocol.block import BlockRemoved, BlockStored, Tier
from daemons.protocol.node import NodeJoined, NodeLeft


class BlockMoved(Message, frozen=True, kw_only=True, gc=False):
    """Event, in place of BlockRemoved: the replica that was there is gone, and the block is here, on the same node in a
    lower tier or on another node that it was told to go to.

    That it is stored here was an event of its own before.
    """

    incarnation: Incarnation
    hash: BlockHash
    node: NodeId
    tier: Tier
    from_node: NodeId
    from_tier: Tier


Event = BlockStored | BlockRemoved | BlockMoved | NodeJoined | NodeLeft


class ReadEvents(Message, frozen=True, kw_only=True):
    """To the master: events of the recent past, in order, from number `first` on, or the `last` so many.

    Topics are lower-case names of events; none means all.
    """

    first: int = 1
    last: int | None = None
    topics: list[str] = msgspec.field(default_factory=list)
    limit: int = 1000


class PastEvent(Record, frozen=True, kw_only=True):
    """`payload` as it was published."""

    sequence: int
    age_ms: int
    payload: bytes


class ReadEventsReply(Message, frozen=True, kw_only=True):
    """Numbers below `oldest` are no longer kept: whoever missed them has to look at the whole state again.

    More may follow from number `next` on, up to `newest`. Numbers begin anew with every `incarnation`.
    """

    incarnation: Incarnation
    events: list[PastEvent]
    oldest: int
    newest: int
    next: int
