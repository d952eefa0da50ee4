"""Pins: blocks that eviction leaves alone for a time. A pin holds every block before it in its prefix, too."""

from typing import Literal

import msgspec

from daemons.core.ids import BlockHash, Incarnation
from daemons.protocol.base import Message, Record

PinLevel = Literal["none", "soft", "hard"]
"""Soft: evicted when nothing else is left; hard: never evicted."""


class Pin(Record, frozen=True, kw_only=True):
    hash: BlockHash
    is_hard: bool
    ttl_ms: int
    """Time that is left of it."""
    is_own: bool = True
    """Asked for, not only before such a block in its prefix."""


class PinBlocks(Message, frozen=True, kw_only=True):
    """To the master: pin these for so long, or with "none" end their pins. A new pin replaces the one before."""

    hashes: list[BlockHash]
    level: PinLevel = "soft"
    ttl_ms: int = 1_800_000


class PinBlocksReply(Message, frozen=True, kw_only=True):
    """`num_changed`: of those asked for; `num_pinned`: blocks in the pool that are pinned now, whoever asked."""

    num_changed: int
    num_pinned: int
    missing: list[BlockHash] = msgspec.field(default_factory=list)
    """Not in the pool, or without a pin to end."""


class HoldPins(Message, frozen=True, kw_only=True):
    """Notice from the master to a cache node: which of its blocks are pinned; replaces what it was told before."""

    pins: list[Pin]
    incarnation: Incarnation
    """To this master the node need not tell them."""
