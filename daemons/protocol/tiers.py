"""Between the tiers of one cache node: up into DRAM for those who read, down to its SSD or object store."""

import msgspec

from daemons.core.ids import BlockHash, NodeId, StageId
from daemons.protocol.base import Message
from daemons.protocol.block import BlockLocation, Hashes, Tier
from daemons.protocol.segment import Grant


class Stage(Message, frozen=True, kw_only=True):
    """Reader to cache node: bring these into DRAM and hold them there until Unstage with this id, or for `hold_ms`.

    The answer comes when all that can be are there, or shortly before the call's deadline with those that are.
    """

    stage_id: StageId
    hashes: Hashes
    hold_ms: int = 30_000
    wants_grants: bool = False


class StageReply(Message, frozen=True, kw_only=True):
    """Where each is now, in order; None: not here, or no room for it, `why` says so of one."""

    locations: list[BlockLocation | None]
    why: str = ""
    grants: list[Grant] = msgspec.field(default_factory=list)
    """As wanted: one for each location that is not None, for as long as it is held."""


class Unstage(Message, frozen=True, kw_only=True):
    """Reader to cache node: it has read what it had staged."""

    stage_id: StageId


class StageAhead(Message, frozen=True, kw_only=True):
    """Notice from the master to a cache node: a planned request will read these; begin to bring them into DRAM."""

    hashes: list[BlockHash]
    hold_ms: int = 10_000


class WriteDown(Message, frozen=True, kw_only=True):
    """Notice from the master to a cache node: write these to the tier `to`, then, with `evict`, free them in DRAM."""

    hashes: list[BlockHash]
    to: Tier = "ssd"
    evict: bool = False


class AdoptObjects(Message, frozen=True, kw_only=True):
    """Notice from the master to a cache node: read the object tiers of these nodes, which are out, and of no others."""

    nodes: list[NodeId]
