"""Tells the master which blocks an instance's KV arena holds, batched; everything again to a master that is new or lost
count. They are hints: a prompt that finds a block gone is computed from there on.

What waits is bounded by what the arena holds: names, not events.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from daemons.core.ids import BlockHash, Epoch, NodeId
from daemons.protocol.block import BlockFilter, FreeBlocks, RememberClear, SealedBlock
from daemons.protocol.messages import Notice
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report, ReportReply
from daemons.rpc import Loop
from daemons.service.master_link import MasterLink
from daemons.service.report_stream import ReportStream

MAX_BLOCKS: Final = 2000
"""Of one report."""
_INTERVAL_S: Final = 0.005
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

    def forget_ahead(self, wanted: BlockFilter, age_s: float) -> object:
        """So long ago so was what was being made then and matches."""


@dataclass(frozen=True, slots=True)
class Instance:
    """In whose name reports are sent."""

    node: NodeId
    epoch: Epoch


class DeviceReports:
    """Loop thread only. What it is told before it is attached is in the first announcement."""

    def __init__(self, loop: Loop, instance: Instance) -> None:
        self._instance = instance
        self._held: HeldBlocks | None = None
        self._sealed: dict[BlockHash, None] = {}
        self._freed: dict[BlockHash, None] = {}
        self._stream = ReportStream(loop, _INTERVAL_S, self)

    def attach(self, link: MasterLink, held: HeldBlocks) -> None:
        self._held = held
        self._stream.attach(link)

    def obey(self, notice: Notice) -> None:
        """What the master says unasked; all else is not for this node."""
        if self._held is None:
            return
        if isinstance(notice, FreeBlocks):
            self._held.forget(notice.hashes)
            self.freed(notice.hashes)  # also those that it believes to be here
        elif isinstance(notice, RememberClear) and self._is_meant(notice.filter):
            self._held.forget_ahead(notice.filter, notice.age_ms / 1000)

    def sealed(self, hashes: Sequence[BlockHash]) -> None:
        """What was freed just before is told as freed, too: a clear may wait for that."""
        self._sealed |= dict.fromkeys(hashes)
        self._stream.schedule()

    def freed(self, hashes: Sequence[BlockHash]) -> None:
        for each in hashes:
            self._sealed.pop(each, None)
            self._freed[each] = None
        if len(self._freed) > _MAX_FREED:
            self.announce()
        self._stream.schedule()

    def announce(self) -> None:
        """Start again from nothing; the first report voids what the master knew."""
        if self._held is not None:
            self._stream.announce()

    # -- what the stream asks --------------------------------------------------------------------------------------

    def has_news(self) -> bool:
        """Whether anything came or went since it was told."""
        return bool(self._sealed or self._freed)

    def is_announcing(self) -> bool:
        """No: an arena's announcement may take its time, nobody waits for hints."""
        return False

    def restart(self) -> None:
        """All that is held is news."""
        self._freed.clear()
        self._sealed = dict.fromkeys(self._held_now().hashes())

    def next_report(self, sequence: int) -> Report:
        """The next of what came and what went."""
        held = self._held_now()
        gone = list(islice(self._freed, MAX_BLOCKS))
        for each in gone:
            del self._freed[each]
        # One that is still to be told as freed would be taken for gone after all.
        fresh = list(islice((each for each in self._sealed if each not in self._freed), MAX_BLOCKS))
        for each in fresh:
            del self._sealed[each]
        used_bytes, capacity_bytes = held.usage()
        return Report(
            node=self._instance.node,
            epoch=self._instance.epoch,
            sequence=sequence,
            sealed=SealedBlocks.pack(held.describe(fresh)),
            freed=gone,
            used_bytes=used_bytes,
            capacity_bytes=capacity_bytes,
            tier="device",
        )

    def on_heard(self, report: Report, reply: ReportReply) -> None:
        """What the master does not want is forgotten, and what is being made from it is not to stay."""
        if reply.unwanted:
            held = self._held_now()
            held.forget_ahead(BlockFilter(hashes=tuple(reply.unwanted)), 0.0)
            held.forget(reply.unwanted)

    def _is_meant(self, wanted: BlockFilter) -> bool:
        return wanted.node in (None, self._instance.node)

    def _held_now(self) -> HeldBlocks:
        assert self._held is not None, "the stream is attached together with the arena"
        return self._held
