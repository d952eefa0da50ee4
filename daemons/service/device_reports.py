"""Tells the master which blocks an instance's KV arena holds, batched; everything again to a master that is new or lost
count. They are hints: a prompt that finds a block gone is computed from there on.

One report is in flight at a time. What waits is bounded by what the arena holds: names, not events.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from daemons.core.errors import McError, Unavailable
from daemons.core.ids import BlockHash, Epoch, NodeId
from daemons.protocol.block import BlockFilter, FreeBlocks, RememberClear, SealedBlock
from daemons.protocol.messages import Notice, Reply
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report, ReportReply
from daemons.rpc import Loop
from daemons.service.master_link import MasterLink

log = logging.getLogger(__name__)

MAX_BLOCKS: Final = 2000
"""Of one report."""
_INTERVAL_S: Final = 0.005
_RETRY_S: Final = 0.2
_REFUSED_S: Final = 30.0
_TIMEOUT_S: Final = 2.0
_MAX_FREED: Final = 100_000
"""Told one by one; beyond it all is announced again."""


class HeldBlocks(Protocol):
    """What the arena knows of its blocks."""

    def hashes(self) -> list[BlockHash]: ...

    def describe(self, hashes: Iterable[BlockHash]) -> list[SealedBlock]:
        """Those of them that are held."""

    def usage(self) -> tuple[int, int]:
        """(bytes of blocks held, bytes that may be)."""

    def forget(self, hashes: Sequence[BlockHash]) -> object:
        """They were cleared."""

    def forget_ahead(self, wanted: BlockFilter) -> object:
        """So was what is being made now and matches."""


@dataclass(frozen=True, slots=True)
class Instance:
    """In whose name reports are sent."""

    node: NodeId
    epoch: Epoch


class DeviceReports:
    """Loop thread only. What it is told before it is attached is in the first announcement."""

    def __init__(self, loop: Loop, instance: Instance) -> None:
        self._loop = loop
        self._instance = instance
        self._held: HeldBlocks | None = None
        self._link: MasterLink | None = None
        self._sealed: dict[BlockHash, None] = {}
        self._freed: dict[BlockHash, None] = {}
        self._sequence = 0
        self._life = 0
        """Counts announcements: a reply to a report of an earlier one means nothing."""
        self._in_flight: Report | None = None
        self._is_scheduled = False

    def attach(self, link: MasterLink, held: HeldBlocks) -> None:
        self._link = link
        self._held = held

    def obey(self, notice: Notice) -> None:
        """What the master says unasked; all else is not for this node."""
        if self._held is None:
            return
        if isinstance(notice, FreeBlocks):
            self._held.forget(notice.hashes)
            self.freed(notice.hashes)  # also those that it believes to be here
        elif isinstance(notice, RememberClear):
            self._held.forget_ahead(notice.filter)

    def sealed(self, hashes: Sequence[BlockHash]) -> None:
        for each in hashes:
            self._freed.pop(each, None)
            self._sealed[each] = None
        self._schedule()

    def freed(self, hashes: Sequence[BlockHash]) -> None:
        for each in hashes:
            self._sealed.pop(each, None)
            self._freed[each] = None
        if len(self._freed) > _MAX_FREED:
            self.announce()
        self._schedule()

    def announce(self) -> None:
        """Start again from nothing; the first report voids what the master knew."""
        if self._held is None:
            return
        self._life += 1
        self._sequence = 0
        self._in_flight = None
        self._freed.clear()
        self._sealed = dict.fromkeys(self._held.hashes())
        self._send()

    def _schedule(self) -> None:
        if not self._is_scheduled and self._in_flight is None:
            self._is_scheduled = True
            self._loop.call_later(_INTERVAL_S, self._flush)

    def _flush(self) -> None:
        self._is_scheduled = False
        if self._in_flight is None and (self._sealed or self._freed):
            self._send()

    def _send(self) -> None:
        """Without a master nothing is sent; joining one announces everything."""
        if self._link is not None and self._held is not None and self._link.is_joined:
            self._in_flight = self._build(self._held)
            self._post()

    def _build(self, held: HeldBlocks) -> Report:
        fresh, gone = list(islice(self._sealed, MAX_BLOCKS)), list(islice(self._freed, MAX_BLOCKS))
        for each in fresh:
            del self._sealed[each]
        for each in gone:
            del self._freed[each]
        self._sequence += 1
        used_bytes, capacity_bytes = held.usage()
        return Report(
            node=self._instance.node,
            epoch=self._instance.epoch,
            sequence=self._sequence,
            sealed=SealedBlocks.pack(held.describe(fresh)),
            freed=gone,
            used_bytes=used_bytes,
            capacity_bytes=capacity_bytes,
            tier="device",
        )

    def _post(self) -> None:
        if self._link is None or self._in_flight is None:
            return
        life = self._life
        self._link.ask(
            self._in_flight,
            timeout_s=_TIMEOUT_S,
            on_reply=lambda reply: self._on_reply(life, reply),
        )

    def _on_reply(self, life: int, reply: Reply | McError) -> None:
        if life != self._life:
            return
        if isinstance(reply, ReportReply):
            self._in_flight = None
            if reply.announce:
                self.announce()
                return
            if reply.unwanted and self._held is not None:
                self._held.forget(reply.unwanted)
            if self._sealed or self._freed:
                self._schedule()
        elif isinstance(reply, Unavailable):
            self._loop.call_later(_RETRY_S, self._retry, life)
        else:
            log.warning("report of held blocks refused why=%s again_in_s=%g", reply, _REFUSED_S)
            self._loop.call_later(_REFUSED_S, self._announce_again, life)

    def _retry(self, life: int) -> None:
        """The same report again; a join in the meantime has started over and made it void."""
        if life == self._life and self._link is not None and self._link.is_joined:
            self._post()

    def _announce_again(self, life: int) -> None:
        if life == self._life:
            self.announce()
