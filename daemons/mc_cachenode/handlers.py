"""What a cache node is asked: put, stage, free and verify blocks. Loop thread; copying is the workers'."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import assert_never

from daemons.core.errors import Exhausted, ProtocolError
from daemons.core.ids import BlockHash, Incarnation, short
from daemons.mc_cachenode.copies.copy_staging import SourceStaging
from daemons.mc_cachenode.copies.copying import Copying, CopyParts
from daemons.mc_cachenode.lower.lasting import once_lasting
from daemons.mc_cachenode.lower.lower_blocks import LowerBlocks
from daemons.mc_cachenode.lower.staging import Staging
from daemons.mc_cachenode.metrics import CachenodeMetrics
from daemons.mc_cachenode.puts.pull import (
    is_intact,
)
from daemons.mc_cachenode.puts.puts import Puts
from daemons.mc_cachenode.puts.session import PutParts
from daemons.mc_cachenode.replica import Replica, wall_ms
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.mc_cachenode.reporter import Reporter
from daemons.mc_cachenode.segments.segments import Segments
from daemons.protocol.base import Ok, Ping
from daemons.protocol.block import (
    BadReplica,
    BlockLocation,
    DeadName,
    ForgetNames,
    FreeBlocks,
    Put,
    RememberClear,
)
from daemons.protocol.key import AllowedKeys
from daemons.protocol.messages import Notice
from daemons.protocol.node import Hello
from daemons.protocol.pin import HoldPins
from daemons.protocol.probe import DataProbe
from daemons.protocol.replication import CopyBlocks, RememberWanted
from daemons.protocol.report import ReportReply
from daemons.protocol.segment import AddSegment, ListSegments, RemoveSegment
from daemons.protocol.tenant import RefuseTenants
from daemons.protocol.tiers import AdoptObjects, Stage, StageAhead, Unstage, WriteDown
from daemons.rpc import Call, Loop
from daemons.service.data_probe import DataProbes
from daemons.store.index.format import DeadRecord
from daemons.store.segment.copy_workers import CopyWorkers
from daemons.transfer import TransferEngine

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the handlers work with, made by app.py."""

    loop: Loop
    engine: TransferEngine
    outside: TransferEngine
    """For what clients put: it opens no daemon's memory."""
    replicas: ReplicaTable
    workers: CopyWorkers
    reporter: Reporter
    metrics: CachenodeMetrics
    probes: DataProbes
    pull_timeout_s: float
    room_wait_s: float
    incarnation: Callable[[], Incarnation]
    """Of the latest master that this node has joined."""
    is_joined: Callable[[], bool]
    """Whether there is a master, which chooses victims."""
    may_evict: Callable[[], bool]
    """Whether this node chooses them itself: it has been without a master for too long."""
    staging: Staging
    segments: Segments
    sources: SourceStaging
    lower: Sequence[LowerBlocks]
    """The tiers below DRAM, the fastest first."""
    locate: Callable[[Replica], BlockLocation]
    """Where a block that is sealed here can be read."""
    copy_failed: Callable[[list[BlockHash], str], object]
    copy_was_bad: Callable[[BlockLocation, str], object]
    """Tell the master: these could not be copied; this source's bytes were not what was sealed."""


class CachenodeHandlers:
    """Requests and notices of one node."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.puts = Puts(
            PutParts(
                loop=parts.loop,
                engine=parts.engine,
                outside=parts.outside,
                replicas=parts.replicas,
                workers=parts.workers,
                reporter=parts.reporter,
                metrics=parts.metrics,
                pull_timeout_s=parts.pull_timeout_s,
                room_wait_s=parts.room_wait_s,
                incarnation=parts.incarnation,
                is_joined=parts.is_joined,
                may_evict=parts.may_evict,
                leaves_later=self.leaves_later,
                locate=parts.locate,
                replaced=self._replaced,
                on_sealed=self._sealed,
                drop=self._drop,
            )
        )
        self.copying = Copying(
            CopyParts(
                loop=parts.loop,
                engine=parts.engine,
                replicas=parts.replicas,
                workers=parts.workers,
                metrics=parts.metrics,
                sources=parts.sources,
                timeout_s=parts.pull_timeout_s,
                on_sealed=self._copied,
                on_present=parts.reporter.sealed,
                on_failed=parts.copy_failed,
                on_bad=parts.copy_was_bad,
            )
        )

    def drain(self) -> None:
        """Take nothing new any more."""
        self.puts.is_draining = self.copying.is_refusing = True

    def handle(self, call: Call) -> None:
        match call.message:
            case Put():
                self.puts.put(call, call.message)
            case Stage():
                self._parts.staging.stage(call, call.message)
            case Unstage():
                self._parts.staging.unstage(call.message.stage_id)
                call.reply(Ok())
            case ListSegments() | AddSegment() | RemoveSegment():
                self._parts.segments.handle(call, call.message)
            case DataProbe():
                self._parts.probes.answer(call, call.message)
            case Hello() | Ping():
                raise AssertionError("answered by the server")
            case _:
                raise ProtocolError("a cache node does not serve this request")

    def on_notice(self, notice: Notice) -> None:
        match notice:
            case FreeBlocks():
                free = self._delete if notice.is_deletion else self._evict
                free(notice.hashes)
            case StageAhead():
                self._parts.staging.stage_ahead(notice.hashes, notice.hold_ms / 1000)
            case WriteDown() | AdoptObjects():
                self._tell_lower(notice)
            case RememberClear() | RememberWanted() | HoldPins():
                self._remember(notice)
            case ForgetNames():
                self._forget(notice.names)
            case RefuseTenants():
                self.puts.admission.refused = {each.tenant: each.why for each in notice.tenants}
            case BadReplica():
                self._verify(notice)
            case CopyBlocks():
                self.copying.ask(notice.copies)
            case AllowedKeys():
                raise AssertionError("the link to the master keeps them")
            case _:
                assert_never(notice)

    def obey(self, reply: ReportReply) -> None:
        """What the master said to a report."""
        self._evict(reply.victims)
        self._evict(reply.fitting)
        self._delete(reply.unwanted)

    def free(self, hashes: Sequence[BlockHash], why: str) -> None:
        """Free those that are sealed in DRAM. All are reported, so that the master forgets what was not here."""
        for block_hash in hashes:
            replica = self._parts.replicas.get(block_hash)
            if self._parts.replicas.free(block_hash):
                self._parts.metrics.freed_blocks.labels(why).inc()
            if replica is None or replica.state == "gone" or self._parts.staging.drop(block_hash):
                self._parts.reporter.freed(block_hash, is_bad=why == "bad")

    def _evict(self, hashes: Sequence[BlockHash]) -> None:
        """Free them in DRAM; first those that nothing holds, then each that a lower tier takes, once it is there."""
        meant = self._meant(hashes)
        self.free([each for each in meant if not self._is_written_first(each)], "evicted")

    def _meant(self, hashes: Sequence[BlockHash]) -> list[BlockHash]:
        """Without objects that have a version here that the master had not heard of: it meant an older one."""
        replicas, is_news = self._parts.replicas, self._parts.reporter.is_news
        return [
            each
            for each in hashes
            if not ((r := replicas.get(each)) is not None and r.meta.name and is_news(each))
        ]

    def _is_written_first(self, block_hash: BlockHash) -> bool:
        replica = self._parts.replicas.get(block_hash)
        if replica is None or replica.state != "sealed":
            return False
        return any(tier.write_down.evict(replica, "evicted") for tier in self._parts.lower)

    def _remember(self, notice: RememberClear | RememberWanted | HoldPins) -> None:
        """For the time without a master, and for the next one."""
        replicas = self._parts.replicas
        match notice:
            case RememberClear():
                replicas.remembered.clear(notice.filter, wall_ms() - notice.age_ms)
            case RememberWanted():
                replicas.remember_wanted(notice.hashes, notice.count)
            case HoldPins():
                replicas.remembered.hold_pins(notice.pins, notice.incarnation)
            case _:
                assert_never(notice)

    def leaves_later(self, replica: Replica) -> bool:
        """A victim that this node chose itself: what a lower tier has already may go at once."""
        held = (tier.store.get(replica.meta.hash) for tier in self._parts.lower)
        if any(record is not None and record.version >= replica.version for record in held):
            return False
        return self._is_written_first(replica.meta.hash)

    def _tell_lower(self, notice: WriteDown | AdoptObjects) -> None:
        for tier in self._parts.lower:
            if isinstance(notice, AdoptObjects):
                tier.adopt(notice.nodes)
            elif tier.tier == notice.to:
                tier.write_down.ask(notice.hashes, evict=notice.evict)

    def _delete(self, hashes: Sequence[BlockHash]) -> None:
        """From all tiers."""
        meant = self._meant(hashes)
        self.free(meant, "deleted")
        for tier in self._parts.lower:
            tier.delete(meant)

    def _forget(self, names: Sequence[DeadName]) -> None:
        """On disk and logged before the master hears of it: from then on these versions are not to come back."""
        replicas, now_ms = self._parts.replicas, wall_ms()
        records = [DeadRecord(n.key, n.version, now_ms - n.age_ms) for n in names]
        waiting = [tier.forget(records) for tier in self._parts.lower]
        logged = [
            dead
            for dead in names
            if replicas.remembered.die(dead.key, dead.version, now_ms - dead.age_ms)
        ]
        for dead in names:
            if replicas.free_dead(dead.key, dead.version):
                self._parts.metrics.freed_blocks.labels("deleted").inc()
                self._parts.reporter.freed(dead.key)
            staged = replicas.get(dead.key)
            if staged is not None and staged.version <= dead.version:
                self._parts.staging.drop(dead.key)
        replicas.flush()

        def tell(error: BaseException | None) -> None:
            if error is None:
                self._parts.reporter.dead(logged)

        once_lasting(self._parts.loop, waiting, tell)

    def _replaced(self, replica: Replica) -> "list[Future[bool]]":
        """An object has been put: no older version is to come back from a lower tier. An SSD's word is not waited for:
        one that fails must not refuse every put.
        """
        if not replica.meta.name:
            return []
        older = [DeadRecord(replica.meta.hash, replica.version - 1, wall_ms())]
        waiting = {tier.tier: tier.forget(older) for tier in self._parts.lower}
        return [done for tier, done in waiting.items() if tier == "object"]

    def _copied(self, replica: Replica) -> None:
        self._replaced(replica)
        self._sealed(replica)

    def _sealed(self, replica: Replica) -> None:
        for tier in self._parts.lower:
            tier.write_down.on_sealed(replica)
        self._parts.reporter.sealed(replica.meta.hash)

    # A reader's complaint.

    def _verify(self, notice: BadReplica) -> None:
        replica = self._parts.replicas.get(notice.hash)
        if replica is None:
            self._parts.reporter.freed(notice.hash)  # the master believes that it is here
        if replica is None or replica.state != "sealed":
            self._parts.staging.drop(notice.hash)
            return

        def check() -> None:
            self._parts.loop.call_soon_threadsafe(
                self._verified, replica, is_intact(replica), notice.why
            )

        try:
            self._parts.workers.submit("verify", check)
        except Exhausted:
            log.debug("too busy to verify block=%s", short(notice.hash))

    def _verified(self, replica: Replica, is_good: bool, why: str) -> None:
        if replica.state == "sealed" and not is_good:
            self._drop(replica, why)

    def _drop(self, replica: Replica, why: str) -> None:
        log.error("bad replica dropped block=%s why=%s", short(replica.meta.hash), why)
        self.free([replica.meta.hash], "bad")
