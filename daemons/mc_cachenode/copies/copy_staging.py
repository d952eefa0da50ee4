"""Sources of copies that lie below a peer's DRAM: the peer is asked to stage them, and they are let go once copied.

What a peer stages at a time is its own to bound: those that find no slot come again later. Loop thread only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from daemons.client.channel_pool import ChannelPool
from daemons.core.errors import McError
from daemons.core.ids import StageId, new_stage_id
from daemons.protocol.block import BlockLocation
from daemons.protocol.messages import Reply
from daemons.protocol.replication import CopyOrder
from daemons.protocol.tiers import Stage, StageReply, Unstage
from daemons.rpc import Loop

_TIMEOUT_S: Final = 5.0
_HOLD_S: Final = 30.0
"""Also when nobody lets go: staging and reading together take less."""
_UNSTAGE_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class StagedSources:
    """`places` in the order that was asked for, None where it cannot be read now; `why` of those."""

    places: list[BlockLocation | None]
    why: str
    release: Callable[[], object]
    """To be called once the bytes were read."""


OnStaged = Callable[[StagedSources], object]


class SourceStaging:
    """`stage` answers exactly once, never before it returns."""

    def __init__(self, loop: Loop, channels: ChannelPool) -> None:
        self._loop = loop
        self._channels = channels

    def stage(self, orders: Sequence[CopyOrder], on_staged: OnStaged) -> None:
        """All of one node."""
        control, stage_id = orders[0].source.control, new_stage_id()
        message = Stage(
            stage_id=stage_id,
            hashes=[order.meta.hash for order in orders],
            hold_ms=round(1000 * _HOLD_S),
        )

        def on_reply(reply: Reply | McError) -> None:
            on_staged(_staged(orders, reply, partial(self._release, control, stage_id)))

        try:
            self._channels.get(control).request(message, timeout_s=_TIMEOUT_S, on_reply=on_reply)
        except McError as error:
            self._loop.call_later(0, on_reply, error)

    def _release(self, control: str, stage_id: StageId) -> None:
        """Best effort: what is not let go ends by itself."""
        try:
            self._channels.get(control).request(
                Unstage(stage_id=stage_id),
                timeout_s=_UNSTAGE_TIMEOUT_S,
                on_reply=lambda _: None,
            )
        except McError:
            return


def _staged(
    orders: Sequence[CopyOrder], reply: Reply | McError, release: Callable[[], object]
) -> StagedSources:
    places: list[BlockLocation | None] = [None] * len(orders)
    why = "its node does not have it any more"
    if isinstance(reply, StageReply) and len(reply.locations) == len(orders):
        found = zip(orders, reply.locations, strict=True)
        places = [at if at is not None and _is_same(order, at) else None for order, at in found]
        why = reply.why or why
    elif isinstance(reply, McError):
        why = f"its node cannot stage it: {reply.message}"
    return StagedSources(places, why, release)


def _is_same(order: CopyOrder, at: BlockLocation) -> bool:
    source = order.source
    return (at.hash, at.version, at.seal_checksum) == (
        source.hash,
        source.version,
        source.seal_checksum,
    )
