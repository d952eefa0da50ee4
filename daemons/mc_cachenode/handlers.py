"""What a cache node is asked: put, stage, free and verify blocks. Loop thread; copying is the workers'."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from daemons.core.errors import Exhausted, ProtocolError, Unavailable
from daemons.core.ids import BlockHash, PutId, short
from daemons.core.units import MIB, format_size
from daemons.mc_cachenode.copying import Copying, CopyParts
from daemons.mc_cachenode.lower_blocks import LowerBlocks
from daemons.mc_cachenode.metrics import CachenodeMetrics
from daemons.mc_cachenode.pull import (
    PullOutcome,
    PullTask,
    is_intact,
    payload_bytes,
    pull,
    refusal,
)
from daemons.mc_cachenode.replicas import VERSION, Replica, ReplicaTable, wall_ms
from daemons.mc_cachenode.reporter import Reporter
from daemons.mc_cachenode.staging import Staging
from daemons.protocol.base import Ok, Ping
from daemons.protocol.block import (
    BadReplica,
    BlockLocation,
    DeadName,
    ForgetNames,
    FreeBlocks,
    Put,
    PutBlock,
    PutReply,
    PutStatus,
    RememberClear,
    ReportReply,
    Stage,
    StageAhead,
    Unstage,
    WriteDown,
)
from daemons.protocol.messages import Notice
from daemons.protocol.node import Hello
from daemons.protocol.pin import HoldPins
from daemons.protocol.replication import CopyBlocks, RememberWanted
from daemons.protocol.request import DataProbe
from daemons.rpc import Call, Loop
from daemons.service.data_probe import DataProbes
from daemons.store.copy_workers import CopyWorkers
from daemons.store.seal import BadSeal
from daemons.transfer import TransferEngine

log = logging.getLogger(__name__)

_MAX_ANSWERS = 4096
_JOB_BYTES = 8 * MIB
"""A put is split into jobs of about this much, so that workers share it and sources take turns."""
_RETRY_AFTER_MS = 50


@dataclass(slots=True, eq=False)
class _PutSession:
    """A put in progress; all calls that carry its put_id get the one answer."""

    put_id: PutId
    calls: list[Call]
    results: list[PutStatus]
    wants_locations: bool = False
    num_left: int = 0
    why: str = ""
    retry_after_ms: int | None = None
    indexes: dict[BlockHash, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the handlers work with, made by app.py."""

    loop: Loop
    engine: TransferEngine
    replicas: ReplicaTable
    workers: CopyWorkers
    reporter: Reporter
    metrics: CachenodeMetrics
    probes: DataProbes
    pull_timeout_s: float
    may_evict: Callable[[], bool]
    """Whether this node chooses victims itself: it has been without a master for too long."""
    staging: Staging
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
        self._sessions: dict[PutId, _PutSession] = {}
        self._answers: OrderedDict[PutId, PutReply] = OrderedDict()
        self.copying = Copying(
            CopyParts(
                loop=parts.loop,
                engine=parts.engine,
                replicas=parts.replicas,
                workers=parts.workers,
                metrics=parts.metrics,
                timeout_s=parts.pull_timeout_s,
                on_sealed=self._sealed,
                on_present=parts.reporter.sealed,
                on_failed=parts.copy_failed,
                on_bad=parts.copy_was_bad,
            )
        )
        self.is_draining = False

    @property
    def num_puts(self) -> int:
        """In progress."""
        return len(self._sessions)

    def drain(self) -> None:
        """Take nothing new any more."""
        self.is_draining = self.copying.is_refusing = True

    def handle(self, call: Call) -> None:
        match call.message:
            case Put():
                self._put(call, call.message)
            case Stage():
                self._parts.staging.stage(call, call.message)
            case Unstage():
                self._parts.staging.unstage(call.message.stage_id)
                call.reply(Ok())
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
            case WriteDown():
                self._write_down(notice)
            case RememberClear():
                self._parts.replicas.remember_clear(notice.filter, wall_ms() - notice.age_ms)
            case ForgetNames():
                self._forget(notice.names)
            case BadReplica():
                self._verify(notice)
            case HoldPins():
                pins = self._parts.replicas.pins
                pins.hold(notice.pins, notice.incarnation, now_s=time.monotonic())
            case CopyBlocks():
                self.copying.ask(notice.copies)
            case RememberWanted():
                self._parts.replicas.remember_wanted(notice.hashes, notice.count)

    def obey(self, reply: ReportReply) -> None:
        """What the master said to a report."""
        self._evict(reply.victims)
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
        self.free([each for each in hashes if not self._is_written_first(each)], "evicted")

    def _is_written_first(self, block_hash: BlockHash) -> bool:
        replica = self._parts.replicas.get(block_hash)
        if replica is None or replica.state != "sealed":
            return False
        return any(tier.write_down.evict(replica, "evicted") for tier in self._parts.lower)

    def _write_down(self, notice: WriteDown) -> None:
        for tier in self._parts.lower:
            if tier.tier == notice.to:
                tier.write_down.ask(notice.hashes, evict=notice.evict)

    def _delete(self, hashes: Sequence[BlockHash]) -> None:
        """From all tiers."""
        self.free(hashes, "deleted")
        for tier in self._parts.lower:
            tier.delete(hashes)

    def _forget(self, names: Sequence[DeadName]) -> None:
        """Logged before the master hears of it: from then on these versions are not to come back."""
        replicas, now_ms = self._parts.replicas, wall_ms()
        logged = [
            dead
            for dead in names
            if replicas.remember_dead(dead.key, dead.version, now_ms - dead.age_ms)
        ]
        for dead in names:
            if replicas.free_dead(dead.key, dead.version):
                self._parts.metrics.freed_blocks.labels("deleted").inc()
                self._parts.reporter.freed(dead.key)
            staged = replicas.get(dead.key)
            if staged is not None and staged.version <= dead.version:
                self._parts.staging.drop(dead.key)
            for tier in self._parts.lower:
                tier.delete_dead(dead.key, dead.version)
        replicas.flush()
        self._parts.reporter.dead(logged)

    # Put.

    def _put(self, call: Call, message: Put) -> None:
        answer = self._answers.get(message.put_id)
        if answer is not None:
            call.reply(answer)
            return
        session = self._sessions.get(message.put_id)
        if session is not None:
            session.calls.append(call)
            return
        if self.is_draining:
            raise Unavailable("this node is draining; put elsewhere")
        session = _PutSession(
            message.put_id, [call], ["failed"] * len(message.blocks), message.wants_locations
        )
        self._sessions[message.put_id] = session
        tasks = []
        for index, block in enumerate(message.blocks):
            begun = self._begin(session, block)
            if isinstance(begun, Replica):
                session.indexes[block.meta.hash] = index
                tasks.append(PullTask(block, begun))
            else:
                session.results[index] = begun
                if begun == "already_sealed":
                    session.indexes[block.meta.hash] = index
        session.num_left = len(tasks)
        self._submit(session, tasks)
        self._end_if_done(session)

    def _begin(self, session: _PutSession, block: PutBlock) -> Replica | PutStatus:
        """A slot to pull into, or why there is nothing to pull."""
        why = refusal(block)
        if why is not None:
            session.why = f"block {short(block.meta.hash)} is malformed: {why}"
            return "failed"
        if block.version and self._parts.replicas.is_dead(block.meta.hash, block.version):
            session.why = f"version {block.version} was deleted or replaced meanwhile"
            return "conflict"
        existing = self._parts.replicas.get(block.meta.hash)
        if existing is not None:
            status = self._compare(block, existing)
            if status is not None:
                return status
        try:
            return self._allocate(block)
        except Exhausted as error:
            return self._exhausted(session, Exhausted(f"{error.message}; {self._what_stays()}"))

    def _what_stays(self) -> str:
        """What of this node's memory cannot make room now; the master counts leases and pins when it is full."""
        parts = self._parts
        return (
            f"{format_size(parts.replicas.writing_bytes)} being written, "
            f"{format_size(parts.reporter.leased_bytes)} leased to readers, "
            f"{format_size(parts.reporter.pinned_bytes)} pinned hard"
        )

    def _allocate(self, block: PutBlock) -> Replica:
        """Raises Exhausted when nothing is free and no victim is ours to choose."""
        replicas, length = self._parts.replicas, payload_bytes(block)
        version = block.version or VERSION
        try:
            return replicas.begin(block.meta, length, block.num_layers, version=version)
        except Exhausted:
            if not self._parts.may_evict():
                raise
        for freed in replicas.make_room(length, block.num_layers):
            self._parts.reporter.freed(freed)
            self._parts.metrics.freed_blocks.labels("own").inc()
        return replicas.begin(block.meta, length, block.num_layers, version=version)

    def _sealed(self, replica: Replica) -> None:
        for tier in self._parts.lower:
            if replica.meta.name:
                tier.delete_dead(replica.meta.hash, replica.version - 1)
            tier.write_down.on_sealed(replica)
        self._parts.reporter.sealed(replica.meta.hash)

    def _compare(self, block: PutBlock, existing: Replica) -> PutStatus | None:
        """None: what was here is damaged and gone, put it again; or it is an older version."""
        if block.version:
            if existing.state == "writing":
                return "being_written"
            if existing.version < block.version:
                return None
            return "already_sealed" if existing.version == block.version else "conflict"
        if existing.length != block.source.ranges.length:
            return "conflict"
        if existing.state == "writing":
            return "being_written"
        if block.checksums is not None:
            try:
                sealed = self._parts.replicas.trailer(existing).checksums
            except BadSeal as error:
                self._drop(existing, error.message)
                return None
            if list(sealed) != block.checksums:
                return "conflict"
        self._parts.replicas.touch(block.meta.hash)
        return "already_sealed"

    def _exhausted(self, session: _PutSession, error: Exhausted) -> PutStatus:
        session.why = error.message
        session.retry_after_ms = error.retry_after_ms or _RETRY_AFTER_MS
        return "exhausted"

    def _submit(self, session: _PutSession, tasks: list[PullTask]) -> None:
        workers = self._parts.workers
        start = 0
        while start < len(tasks):
            length = tasks[start].replica.length
            share = -(-len(tasks) // workers.num_workers)
            job = tasks[start : start + min(share, max(1, _JOB_BYTES // length))]
            start += len(job)
            address = job[0].block.source.region.address
            try:
                workers.submit(
                    (address.tcp, address.unix_path),
                    lambda job=job: self._run(session, job),  # type: ignore[misc]  # binds this turn's job
                    len(job),
                )
            except Exhausted as error:
                for task in job:
                    index = session.indexes[task.block.meta.hash]
                    session.results[index] = self._exhausted(session, error)
                    self._parts.replicas.abandon(task.replica)
                session.num_left -= len(job)

    def _run(self, session: _PutSession, job: list[PullTask]) -> None:
        """On a worker."""
        parts = self._parts
        outcomes = [
            pull(parts.engine, parts.replicas.segment, task, parts.pull_timeout_s) for task in job
        ]
        parts.loop.call_soon_threadsafe(self._finish, session, outcomes)

    def _finish(self, session: _PutSession, outcomes: list[PullOutcome]) -> None:
        parts = self._parts
        for outcome in outcomes:
            replica = outcome.task.replica
            index = session.indexes[replica.meta.hash]
            parts.metrics.pull_seconds.observe(outcome.seconds)
            if outcome.seal_checksum is None:
                parts.replicas.abandon(replica)
                session.results[index] = "failed"
                session.why = outcome.why
            elif parts.replicas.is_dead(replica.meta.hash, replica.version):
                parts.replicas.abandon(replica)
                session.results[index] = "conflict"
                session.why = "it was deleted or replaced while it was put"
            else:
                replica.wanted = outcome.task.block.wanted
                parts.replicas.seal(replica, outcome.seal_checksum)
                self._sealed(replica)
                parts.metrics.pulled_bytes.inc(replica.length)
                session.results[index] = "stored"
        session.num_left -= len(outcomes)
        self._end_if_done(session)

    def _end_if_done(self, session: _PutSession) -> None:
        if session.num_left:
            return
        reply = PutReply(
            results=session.results,
            why=session.why,
            retry_after_ms=session.retry_after_ms,
            locations=self._locations(session) if session.wants_locations else [],
        )
        del self._sessions[session.put_id]
        self._parts.replicas.flush()
        num_refused = 0
        for status in session.results:
            self._parts.metrics.put_blocks.labels(status).inc()
            num_refused += status == "exhausted"
        if num_refused:
            self._parts.reporter.refused(num_refused)
        # These are no outcomes: the same put may be tried again.
        if not {"exhausted", "failed", "being_written"} & set(session.results):
            self._answers[session.put_id] = reply
            if len(self._answers) > _MAX_ANSWERS:
                self._answers.popitem(last=False)
        for call in session.calls:
            call.reply(reply)

    def _locations(self, session: _PutSession) -> list[BlockLocation]:
        found = (self._parts.replicas.get(block_hash) for block_hash in session.indexes)
        return [self._parts.locate(r) for r in found if r is not None and r.state == "sealed"]

    # A reader's complaint.

    def _verify(self, notice: BadReplica) -> None:
        replica = self._parts.replicas.get(notice.hash)
        if replica is None:
            self._parts.reporter.freed(notice.hash)  # the master believes that it is here
        if replica is None or replica.state != "sealed":
            self._parts.staging.drop(notice.hash)
            return
        segment = self._parts.replicas.segment

        def check() -> None:
            self._parts.loop.call_soon_threadsafe(
                self._verified, replica, is_intact(segment, replica), notice.why
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
