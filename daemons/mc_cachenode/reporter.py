"""Tells the master what was sealed and freed, batched; everything again when a master starts from nothing.

One report is in flight at a time. A report whose reply was lost is sent again unchanged, which the master ignores
if it had it. What waits is bounded by what the segment holds: names, not events.
"""

import logging
from collections import deque
from collections.abc import Callable

from daemons.core.errors import McError, Unavailable
from daemons.core.ids import BlockHash, Epoch, NodeId
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.protocol.block import Report, ReportReply
from daemons.protocol.messages import Reply
from daemons.rpc import Loop
from daemons.service.master_link import MasterLink

log = logging.getLogger(__name__)

MAX_BLOCKS = 2000
"""Per report: a hundred of them announce the largest segment, and none delays the loop for long."""

_RETRY_S = 0.2
_TIMEOUT_S = 2.0
_MAX_PENDING_FREED = 100_000
"""Without a master frees are forgotten beyond this: the next one gets a whole announcement anyway."""


class Reporter:
    """Loop thread only. `free` is called with the master's victims."""

    def __init__(
        self,
        loop: Loop,
        replicas: ReplicaTable,
        name: tuple[NodeId, Epoch],
        interval_s: float,
        free: Callable[[list[BlockHash]], object],
    ) -> None:
        self._loop = loop
        self._replicas = replicas
        self._name = name
        self._interval_s = interval_s
        self._free = free
        self._link: MasterLink | None = None
        self._sealed: dict[BlockHash, None] = {}
        self._freed: dict[BlockHash, None] = {}
        self._refused_puts = 0
        self._announcing: deque[BlockHash] = deque()
        self._sequence = 0
        self._life = 0
        """Counts announcements: a reply to a report of an earlier one means nothing."""
        self._in_flight: Report | None = None
        self._is_scheduled = False

    @property
    def is_idle(self) -> bool:
        """Nothing to tell, nothing unanswered."""
        return not (self._in_flight or self._sealed or self._freed or self._announcing)

    def attach(self, link: MasterLink) -> None:
        self._link = link

    def sealed(self, block_hash: BlockHash) -> None:
        self._sealed[block_hash] = None
        self._schedule()

    def freed(self, block_hash: BlockHash) -> None:
        self._sealed.pop(block_hash, None)
        if len(self._freed) < _MAX_PENDING_FREED:
            self._freed[block_hash] = None
        self._schedule()

    def refused(self, num_puts: int) -> None:
        self._refused_puts += num_puts
        self._schedule()

    def announce(self) -> None:
        """Start again from nothing: a master that is new, or that lost count of us."""
        self._life += 1
        self._sequence = 0
        self._in_flight = None
        self._sealed.clear()
        self._freed.clear()
        self._announcing = deque(replica.meta.hash for replica in self._replicas.sealed())
        self._send()

    def _schedule(self) -> None:
        if not self._is_scheduled and self._in_flight is None:
            self._is_scheduled = True
            self._loop.call_later(self._interval_s, self._flush)

    def _flush(self) -> None:
        self._is_scheduled = False
        if self._in_flight is None:
            self._send()

    def _send(self) -> None:
        """Without a master nothing is sent; joining one announces everything."""
        if self._link is not None and self._link.is_joined:
            self._in_flight = self._build()
            self._post()

    def _build(self) -> Report:
        hashes: list[BlockHash] = []
        while self._announcing and len(hashes) < MAX_BLOCKS:
            hashes.append(self._announcing.popleft())
        fresh = list(self._sealed)[: MAX_BLOCKS - len(hashes)]
        freed = list(self._freed)[:MAX_BLOCKS]
        for block_hash in fresh:
            del self._sealed[block_hash]
        for block_hash in freed:
            del self._freed[block_hash]
        found = (self._replicas.get(block_hash) for block_hash in dict.fromkeys(hashes + fresh))
        node, epoch = self._name
        slots = self._replicas.segment.slots
        self._sequence += 1
        refused, self._refused_puts = self._refused_puts, 0
        return Report(
            node=node,
            epoch=epoch,
            sequence=self._sequence,
            sealed=[r.describe() for r in found if r is not None and r.state == "sealed"],
            freed=freed,
            used_bytes=slots.used_bytes,
            capacity_bytes=slots.usable_bytes,
            refused_puts=refused,
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
                log.info("announcing again num_blocks=%d", self._replicas.num_sealed)
                self.announce()
                return
            self._free(reply.victims)
            if self._announcing:
                self._send()
            elif self._sealed or self._freed or self._refused_puts:
                self._schedule()
            return
        level = logging.DEBUG if isinstance(reply, Unavailable) else logging.WARNING
        log.log(level, "report failed why=%r", reply)
        self._loop.call_later(_RETRY_S, self._retry, life)

    def _retry(self, life: int) -> None:
        """The same report again; a join in the meantime has started over and made it void."""
        if life == self._life and self._link is not None and self._link.is_joined:
            self._post()
