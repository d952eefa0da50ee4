"""Tells the master what was sealed and freed in each tier, batched; everything again when a master starts from nothing.

A report is of one tier, and tiers take turns, or one that always has news would silence the others. What moves down is
never reported as gone before it is reported as there. What waits is bounded by what the tiers hold: names, not events.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from daemons.core.ids import BlockHash, Epoch, NodeId
from daemons.mc_cachenode.pins import NodePins
from daemons.protocol.block import (
    DeadName,
    SealedBlock,
    Tier,
    Tombstone,
)
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.pin import Pin
from daemons.protocol.report import Report, ReportReply, Shortage
from daemons.protocol.segment import SegmentDescription
from daemons.rpc import Loop
from daemons.service.master_link import MasterLink
from daemons.service.report_stream import ReportStream

MAX_BLOCKS = 2000
"""Per report: a hundred of them announce the largest segment, and none delays the loop for long."""

_MAX_LOOKED_AT = 4 * MAX_BLOCKS
"""Frees, for those that may be told: a lower tier is seldom far behind."""

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

    def is_to_tell(self, block_hash: BlockHash) -> bool:
        """Whether the master may not have heard that it is here."""
        return bool(self.announcing) or block_hash in self.sealed

    def take(
        self, lower: Sequence["_Pending"]
    ) -> tuple[list[BlockHash], list[tuple[BlockHash, bool]]]:
        """The next that are sealed, and freed. What a lower tier has to tell of first goes later."""
        self.is_unknown = False
        oldest = islice(self.freed.items(), _MAX_LOOKED_AT)
        may_go = (each for each in oldest if not any(p.is_to_tell(each[0]) for p in lower))
        gone = list(islice(may_go, MAX_BLOCKS))
        for block_hash, _ in gone:
            del self.freed[block_hash]
        hashes = [self.announcing.popleft() for _ in range(min(MAX_BLOCKS, len(self.announcing)))]
        # One that is still to be told as freed was sealed again: told before, it would be taken for gone.
        self.sealed |= dict.fromkeys(each for each in hashes if each in self.freed)
        hashes = [each for each in hashes if each not in self.freed]
        tellable = (each for each in self.sealed if each not in self.freed)
        fresh = list(islice(tellable, MAX_BLOCKS - len(hashes)))
        for block_hash in fresh:
            del self.sealed[block_hash]
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
        self._pending = {each.tier: _Pending(each) for each in tiers}
        """The fastest tier first."""
        self._first = self._last = next(iter(self._pending))
        self._name = name
        self._obey = obey
        self._link: MasterLink | None = None
        self._dead: dict[BlockHash, DeadName] = {}
        self._unheard: set[BlockHash] = set()
        """Sealed in the first tier, and sent, or to be announced; the master's answer is not here yet."""
        self._refused_puts = 0
        self._is_first = False
        """Whether the next report begins an announcement."""
        self._stream = ReportStream(loop, interval_s, self)
        self.pins = NodePins()
        """Told to a master that did not make them."""
        self.knows_all: Callable[[], bool] = lambda: True
        """Whether all tiers are open."""
        self._is_opening = False
        """And what they hold was not told when the last report was made."""
        self.segments: Callable[[], list[SegmentDescription]] = list
        """All that are lent."""
        self._tells_segments = False
        self.short_of: Callable[[], list[Shortage]] = list
        """What puts wait for; asked for with each report of the first tier."""
        self.on_fitting: Callable[[list[Shortage], list[BlockHash]], object] = lambda *_: None
        """Called with what was asked for, and what goes for it."""
        self.leased_bytes = self.pinned_bytes = 0
        """Why the master had no more victims, as it said last."""

    @property
    def is_idle(self) -> bool:
        """Nothing to tell, nothing unanswered."""
        return not (self._stream.is_unanswered or self._dead or any(self._pending.values()))

    def attach(self, link: MasterLink) -> None:
        self._link = link
        self._stream.attach(link)

    def sealed(self, block_hash: BlockHash, tier: Tier = "dram") -> None:
        self._pending[tier].sealed[block_hash] = None
        self._stream.schedule()

    def is_news(self, block_hash: BlockHash) -> bool:
        """Sealed in DRAM, and the master had not heard of it when it said what has been heard from it last."""
        return block_hash in self._unheard or block_hash in self._pending[self._first].sealed

    def freed(self, block_hash: BlockHash, tier: Tier = "dram", *, is_bad: bool = False) -> None:
        pending = self._pending[tier]
        pending.sealed.pop(block_hash, None)
        if len(pending.freed) < _MAX_PENDING_FREED:
            pending.freed[block_hash] = is_bad
        self._stream.schedule()

    def dead(self, names: Iterable[DeadName]) -> None:
        """Logged here; the master waits for it, or may not know."""
        for name in names:
            self._dead[name.key] = name
        if self._dead:
            self._stream.schedule()

    def changed_segments(self) -> None:
        """Some were mounted or unmounted: told with the next report, and so before any block in them."""
        self._tells_segments = True
        self.changed()

    def refused(self, num_puts: int) -> None:
        self._refused_puts += num_puts
        self._stream.schedule()

    def refresh(self) -> None:
        """Tell how full tiers are where that changed without a block coming or going, and that the last one is open."""
        if self._is_opening and self.knows_all():
            self.changed()
        for pending in self._pending.values():
            if pending.source.usage() != pending.told:
                pending.is_unknown = True
                self._stream.schedule()

    def announce(self) -> None:
        """Start again from nothing: a master that is new, or that lost count of us."""
        self._stream.announce()

    # -- what the stream asks --------------------------------------------------------------------------------------

    def has_news(self) -> bool:
        """Whether the master is not told of something yet."""
        return bool(self._refused_puts or self._dead or any(self._pending.values()))

    def is_announcing(self) -> bool:
        """Whether blocks that were here when the announcement began are not told yet."""
        return any(pending.announcing for pending in self._pending.values())

    def restart(self) -> None:
        """All that any tier holds is news."""
        self._unheard.update(self._pending[self._first].sealed)
        for pending in self._pending.values():
            pending.restart()
        self._dead = {
            name.key: name
            for pending in self._pending.values()
            for name in pending.source.dead_names()
        }
        self._is_first = self._tells_segments = True

    def _next_tier(self) -> Tier:
        """An announcement begins with the first; else the next that has something to tell, upwards from the lowest."""
        if self._is_first:
            return self._first
        upwards = list(reversed(self._pending))
        turn = upwards.index(self._last) + 1
        tiers = upwards[turn:] + upwards[:turn]
        return next((tier for tier in tiers if self._pending[tier]), self._first)

    def changed(self) -> None:
        """Something that is told beside blocks."""
        self._pending[self._first].is_unknown = True
        self._stream.schedule()

    def next_report(self, sequence: int) -> Report:
        """Of one tier, with what is told beside blocks."""
        tier = self._last = self._next_tier()
        pending = self._pending[tier]
        all_pending = list(self._pending.values())
        source = pending.source
        source.flush()
        hashes, gone = pending.take(lower=all_pending[all_pending.index(pending) + 1 :])
        if tier == self._first:
            self._unheard.update(hashes)
        dead = list(islice(self._dead.values(), MAX_BLOCKS))
        for name in dead:
            del self._dead[name.key]
        node, epoch = self._name
        used_bytes, capacity_bytes = pending.told = source.usage()
        refused, self._refused_puts = self._refused_puts, 0
        cleared = source.tombstones() if self._is_first else []
        pins = self._news() if self._is_first else []
        segments = self.segments() if self._tells_segments else []
        self._is_first = self._tells_segments = False
        self._is_opening = not self.knows_all() or self._is_opening_told()
        return Report(
            node=node,
            epoch=epoch,
            sequence=sequence,
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
            is_opening=self._is_opening,
            short_of=self.short_of() if tier == self._first else [],
        )

    def _is_opening_told(self) -> bool:
        """Of what was found when the last tier opened more is to come."""
        return self._is_opening and any(pending.sealed for pending in self._pending.values())

    def _news(self) -> list[Pin]:
        if self._link is None:
            return []
        return self.pins.news_for(self._link.incarnation, now_s=time.monotonic())

    def on_heard(self, report: Report, reply: ReportReply) -> None:
        """Victims and what is not wanted are for `obey`."""
        if report.tier == self._first:
            self._unheard.difference_update(report.sealed.hashes())
        if not report.is_announcing:
            self._unheard.clear()
        if report.tier == "dram":
            self.leased_bytes, self.pinned_bytes = reply.leased_bytes, reply.pinned_bytes
        self._obey(reply)
        if report.short_of:
            self.on_fitting(report.short_of, reply.fitting)
