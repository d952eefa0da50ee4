"""Tells the master what was sealed and freed in each tier, batched; everything again when a master starts from nothing.

One report is in flight at a time, and is of one tier; the lower tier comes first, so what moves down is never reported
as gone before it is reported as there. A report whose reply was lost is sent again unchanged, which the master ignores
if it had it. What waits is bounded by what the tiers hold: names, not events.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from daemons.core.errors import Exhausted, McError, Unavailable
from daemons.core.ids import BlockHash, Epoch, NodeId
from daemons.mc_cachenode.pins import NodePins
from daemons.protocol.block import (
    DeadName,
    SealedBlock,
    Tier,
    Tombstone,
)
from daemons.protocol.messages import Reply
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.pin import Pin
from daemons.protocol.report import Report, ReportReply
from daemons.protocol.segment import SegmentDescription
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


class ReportedTier(Protocol):
    """What a tier knows of its blocks."""

    @property
    def tier(self) -> Tier: ...

    def hashes(self) -> list[BlockHash]:
        """Of all that are sealed."""

    def report(self, hashes: Iterable[BlockHash]) -> list[SealedBlock]:
        """Those of them that are sealed."""

    def usage(self) -> tuple[int, int]:
        """(bytes used, bytes there are)."""

    def read_bytes_per_s(self) -> int:
        """As measured; 0 where that is not known."""

    def flush(self) -> None:
        """Called before anyone is told."""

    def tombstones(self) -> list[Tombstone]:
        """Clears that it remembers."""

    def dead_names(self) -> list[DeadName]:
        """Versions of objects that it remembers as dead."""


@dataclass(slots=True)
class _Pending:
    """What the master is not told yet of one tier."""

    source: ReportedTier
    sealed: dict[BlockHash, None] = field(default_factory=dict)
    freed: dict[BlockHash, bool] = field(default_factory=dict)
    """Whether it went for being bad."""
    announcing: deque[BlockHash] = field(default_factory=deque)
    is_unknown: bool = False
    """The master does not know yet how full it is, or that it is there at all."""
    told: tuple[int, int] = (0, 0)

    def __bool__(self) -> bool:
        return bool(self.is_unknown or self.sealed or self.freed or self.announcing)

    def restart(self) -> None:
        self.sealed.clear()
        self.freed.clear()
        self.announcing = deque(self.source.hashes())
        self.is_unknown = True

    def take(self) -> tuple[list[BlockHash], list[tuple[BlockHash, bool]]]:
        """The next that are sealed, and freed."""
        self.is_unknown = False
        hashes = [self.announcing.popleft() for _ in range(min(MAX_BLOCKS, len(self.announcing)))]
        fresh = list(islice(self.sealed, MAX_BLOCKS - len(hashes)))
        gone = list(islice(self.freed.items(), MAX_BLOCKS))
        for block_hash in fresh:
            del self.sealed[block_hash]
        for block_hash, _ in gone:
            del self.freed[block_hash]
        return list(dict.fromkeys(hashes + fresh)), gone


class Reporter:
    """Loop thread only. `obey` is called with each reply's victims and unwanted blocks."""

    def __init__(
        self,
        loop: Loop,
        tiers: Sequence[ReportedTier],
        name: tuple[NodeId, Epoch],
        interval_s: float,
        obey: Callable[[ReportReply], object],
    ) -> None:
        self._loop = loop
        self._pending = {each.tier: _Pending(each) for each in tiers}
        """The fastest tier first."""
        self._first = next(iter(self._pending))
        self._name = name
        self._interval_s = interval_s
        self._obey = obey
        self._link: MasterLink | None = None
        self._dead: dict[BlockHash, DeadName] = {}
        self._refused_puts = 0
        self._is_first = False
        """Whether the next report begins an announcement."""
        self._sequence = 0
        self._life = 0
        """Counts announcements: a reply to a report of an earlier one means nothing."""
        self._in_flight: Report | None = None
        self._is_scheduled = False
        self._num_refusals = 0
        """In a row."""
        self.pins = NodePins()
        """Told to a master that did not make them."""
        self.segments: Callable[[], list[SegmentDescription]] = list
        """All that are lent."""
        self._tells_segments = False
        self.leased_bytes = self.pinned_bytes = 0
        """Why the master had no more victims, as it said last."""

    @property
    def is_idle(self) -> bool:
        """Nothing to tell, nothing unanswered."""
        return not (self._in_flight or self._dead or any(self._pending.values()))

    def attach(self, link: MasterLink) -> None:
        self._link = link

    def sealed(self, block_hash: BlockHash, tier: Tier = "dram") -> None:
        self._pending[tier].sealed[block_hash] = None
        self._schedule()

    def freed(self, block_hash: BlockHash, tier: Tier = "dram", *, is_bad: bool = False) -> None:
        pending = self._pending[tier]
        pending.sealed.pop(block_hash, None)
        if len(pending.freed) < _MAX_PENDING_FREED:
            pending.freed[block_hash] = is_bad
        self._schedule()

    def dead(self, names: Iterable[DeadName]) -> None:
        """Logged here; the master waits for it, or may not know."""
        for name in names:
            self._dead[name.key] = name
        if self._dead:
            self._schedule()

    def changed_segments(self) -> None:
        """Some were mounted or unmounted: told with the next report, and so before any block in them."""
        self._tells_segments = True
        self._pending[self._first].is_unknown = True
        self._schedule()

    def refused(self, num_puts: int) -> None:
        self._refused_puts += num_puts
        self._schedule()

    def refresh(self) -> None:
        """Tell how full tiers are where that changed without a block coming or going."""
        for pending in self._pending.values():
            if pending.source.usage() != pending.told:
                pending.is_unknown = True
                self._schedule()

    def announce(self) -> None:
        """Start again from nothing: a master that is new, or that lost count of us."""
        self._life += 1
        self._sequence = 0
        self._in_flight = None
        for pending in self._pending.values():
            pending.restart()
        self._dead = {
            name.key: name
            for pending in self._pending.values()
            for name in pending.source.dead_names()
        }
        self._is_first = self._tells_segments = True
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

    def _next_tier(self) -> Tier:
        """An announcement begins with the first; else the lowest that has something to tell."""
        if self._is_first:
            return self._first
        return next((tier for tier in reversed(self._pending) if self._pending[tier]), self._first)

    def _build(self) -> Report:
        tier = self._next_tier()
        pending = self._pending[tier]
        source = pending.source
        source.flush()
        hashes, gone = pending.take()
        dead = list(islice(self._dead.values(), MAX_BLOCKS))
        for name in dead:
            del self._dead[name.key]
        node, epoch = self._name
        used_bytes, capacity_bytes = pending.told = source.usage()
        self._sequence += 1
        refused, self._refused_puts = self._refused_puts, 0
        cleared = source.tombstones() if self._is_first else []
        pins = self._news() if self._is_first else []
        segments = self.segments() if self._tells_segments else []
        self._is_first = self._tells_segments = False
        return Report(
            node=node,
            epoch=epoch,
            sequence=self._sequence,
            sealed=SealedBlocks.pack(source.report(hashes)),
            freed=[block_hash for block_hash, is_bad in gone if not is_bad],
            bad=[block_hash for block_hash, is_bad in gone if is_bad],
            used_bytes=used_bytes,
            capacity_bytes=capacity_bytes,
            refused_puts=refused,
            cleared=cleared,
            tier=tier,
            read_bytes_per_s=source.read_bytes_per_s(),
            pins=pins,
            dead=dead,
            segments=segments,
            is_announcing=any(p.announcing or p.is_unknown for p in self._pending.values()),
        )

    def _news(self) -> list[Pin]:
        if self._link is None:
            return []
        return self.pins.news_for(self._link.incarnation, now_s=time.monotonic())

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
            was_about = self._in_flight.tier if self._in_flight is not None else None
            self._in_flight = None
            self._num_refusals = 0
            if reply.announce:
                log.info("announcing again")
                self.announce()
                return
            if was_about == "dram":
                self.leased_bytes, self.pinned_bytes = reply.leased_bytes, reply.pinned_bytes
            self._obey(reply)
            if any(pending.announcing for pending in self._pending.values()):
                self._send()
            elif self._refused_puts or self._dead or any(self._pending.values()):
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
