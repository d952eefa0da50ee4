"""Tells the master what was sealed and freed, batched; everything again when a master starts from nothing.

One report is in flight at a time. A report whose reply was lost is sent again unchanged, which the master ignores
if it had it. What waits is bounded by what the segment holds: names, not events.
"""

import logging
from collections import deque
from collections.abc import Callable
from itertools import islice

from daemons.core.errors import Exhausted, McError, Unavailable
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
_REFUSED_RETRY_S = (1.0, 60.0)
"""After the first refusal, and at most; each one doubles it."""
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
        self._freed: dict[BlockHash, bool] = {}
        """Whether it went for being bad."""
        self._refused_puts = 0
        self._announcing: deque[BlockHash] = deque()
        self._is_first = False
        """Whether the next report begins an announcement."""
        self._sequence = 0
        self._life = 0
        """Counts announcements: a reply to a report of an earlier one means nothing."""
        self._in_flight: Report | None = None
        self._is_scheduled = False
        self._num_refusals = 0
        """In a row."""

    @property
    def is_idle(self) -> bool:
        """Nothing to tell, nothing unanswered."""
        return not (self._in_flight or self._sealed or self._freed or self._announcing)

    def attach(self, link: MasterLink) -> None:
        self._link = link

    def sealed(self, block_hash: BlockHash) -> None:
        self._sealed[block_hash] = None
        self._schedule()

    def freed(self, block_hash: BlockHash, *, is_bad: bool = False) -> None:
        self._sealed.pop(block_hash, None)
        if len(self._freed) < _MAX_PENDING_FREED:
            self._freed[block_hash] = is_bad
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
        self._is_first = True
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
        self._replicas.flush()
        hashes: list[BlockHash] = []
        while self._announcing and len(hashes) < MAX_BLOCKS:
            hashes.append(self._announcing.popleft())
        fresh = list(self._sealed)[: MAX_BLOCKS - len(hashes)]
        gone = list(islice(self._freed.items(), MAX_BLOCKS))
        for block_hash in fresh:
            del self._sealed[block_hash]
        for block_hash, _ in gone:
            del self._freed[block_hash]
        found = (self._replicas.get(block_hash) for block_hash in dict.fromkeys(hashes + fresh))
        node, epoch = self._name
        slots = self._replicas.segment.slots
        self._sequence += 1
        refused, self._refused_puts = self._refused_puts, 0
        cleared = self._replicas.tombstones() if self._is_first else []
        self._is_first = False
        return Report(
            node=node,
            epoch=epoch,
            sequence=self._sequence,
            sealed=self._replicas.report(r for r in found if r is not None),
            freed=[block_hash for block_hash, is_bad in gone if not is_bad],
            bad=[block_hash for block_hash, is_bad in gone if is_bad],
            used_bytes=slots.used_bytes,
            capacity_bytes=slots.usable_bytes,
            refused_puts=refused,
            cleared=cleared,
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
            self._num_refusals = 0
            if reply.announce:
                log.info("announcing again num_blocks=%d", self._replicas.num_sealed)
                self.announce()
                return
            self._free([*reply.victims, *reply.unwanted])
            if self._announcing:
                self._send()
            elif self._sealed or self._freed or self._refused_puts:
                self._schedule()
            return
        if isinstance(reply, Unavailable | Exhausted):
            log.debug("report not heard why=%r", reply)
            self._loop.call_later(_RETRY_S, self._retry, life)
        else:
            self._on_refused(life, reply)

    def _on_refused(self, life: int, why: Reply | McError) -> None:
        """What was refused once will be again, so it is not repeated: all is announced anew, ever more rarely."""
        first_s, most_s = _REFUSED_RETRY_S
        delay_s = min(most_s, first_s * 2 ** min(self._num_refusals, 30))
        level = logging.DEBUG if self._num_refusals else logging.ERROR
        self._num_refusals += 1
        log.log(level, "report refused by the master why=%r again_in_s=%g", why, delay_s)
        self._loop.call_later(delay_s, self._announce_again, life)

    def _announce_again(self, life: int) -> None:
        if life == self._life:
            self.announce()

    def _retry(self, life: int) -> None:
        """The same report again; a join in the meantime has started over and made it void."""
        if life == self._life and self._link is not None and self._link.is_joined:
            self._post()
