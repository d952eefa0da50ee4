"""What the master publishes, and how a reader gets again what it missed."""

from collections.abc import Iterator

import msgspec

from daemons.core.ids import BlockHash, Incarnation, NodeId
from daemons.protocol.base import Message, Record
from daemons.protocol.block import BlockMeta, RemovalReason, Tier
from daemons.protocol.node import NodeJoined, NodeLeft
from daemons.protocol.packed import SealedBlocks


class BlocksStored(Message, frozen=True, kw_only=True, gc=False):
    """Event."""

    incarnation: Incarnation
    sealed: SealedBlocks
    node: NodeId
    tier: Tier = "dram"


class BlocksRemoved(Message, frozen=True, kw_only=True, gc=False):
    """Event."""

    incarnation: Incarnation
    hashes: list[BlockHash]
    node: NodeId
    why: RemovalReason
    tier: Tier = "dram"


class BlocksMoved(Message, frozen=True, kw_only=True, gc=False):
    """Event, in place of BlocksRemoved: the replicas that were there are gone, and the blocks are here, on the same
    node in a lower tier or on another node that they were told to go to.

    That they are stored here was an event of its own before.
    """

    incarnation: Incarnation
    hashes: list[BlockHash]
    node: NodeId
    tier: Tier
    from_node: NodeId
    from_tier: Tier


Event = BlocksStored | BlocksRemoved | BlocksMoved | NodeJoined | NodeLeft
"""What is published. An event of several blocks has a number for each of them."""


class BlockStored(msgspec.Struct, frozen=True, kw_only=True):
    """One of BlocksStored."""

    incarnation: Incarnation
    meta: BlockMeta
    node: NodeId
    tier: Tier = "dram"


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """One of BlocksRemoved."""

    incarnation: Incarnation
    hash: BlockHash
    node: NodeId
    why: RemovalReason
    tier: Tier = "dram"


class BlockMoved(msgspec.Struct, frozen=True, kw_only=True):
    """One of BlocksMoved."""

    incarnation: Incarnation
    hash: BlockHash
    node: NodeId
    tier: Tier
    from_node: NodeId
    from_tier: Tier


SingleEvent = BlockStored | BlockRemoved | BlockMoved | NodeJoined | NodeLeft


def size_of(event: Message) -> int:
    """How many numbers it has."""
    match event:
        case BlocksStored():
            return len(event.sealed)
        case BlocksRemoved() | BlocksMoved():
            return len(event.hashes)
        case _:
            return 1


def part_of(event: Message, start: int, stop: int) -> Message:
    """As if only these of its blocks had been published."""
    match event:
        case BlocksStored():
            sealed = event.sealed.part(range(len(event.sealed))[start:stop])
            return msgspec.structs.replace(event, sealed=sealed)
        case BlocksRemoved() | BlocksMoved():
            return msgspec.structs.replace(event, hashes=event.hashes[start:stop])
        case _:
            return event


def singles_of(event: Event) -> Iterator[SingleEvent]:
    """One for each block. Raises ProtocolError."""
    match event:
        case BlocksStored():
            for block in event.sealed:
                yield BlockStored(
                    incarnation=event.incarnation,
                    meta=block.meta,
                    node=event.node,
                    tier=event.tier,
                )
        case BlocksRemoved() | BlocksMoved():
            single = BlockRemoved if isinstance(event, BlocksRemoved) else BlockMoved
            fields = msgspec.structs.asdict(event)
            for block_hash in fields.pop("hashes"):
                yield single(hash=block_hash, **fields)
        case NodeJoined() | NodeLeft():
            yield event


class ReadEvents(Message, frozen=True, kw_only=True):
    """To the master: events of the recent past, in order, from number `first` on, or the `last` so many.

    Topics are lower-case names of events; none means all. `limit` and `last` count numbers.
    """

    first: int = 1
    last: int | None = None
    topics: list[str] = msgspec.field(default_factory=list)
    limit: int = 1000


class PastEvent(Record, frozen=True, kw_only=True):
    """`payload` as it was published, or the asked for part of its blocks; `sequence` is the number of the first."""

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
