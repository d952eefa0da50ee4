"""Puts: a slot for each block, its pull by a worker, its seal, the answer. In a full node a put waits a bounded time.

Loop thread only; copying is the workers'. All calls that carry one put_id get one answer, also when it is repeated.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final, get_args

from daemons.core.errors import Exhausted, Unavailable
from daemons.core.ids import BlockHash, Incarnation, PutId, short
from daemons.core.units import MIB, format_size
from daemons.mc_cachenode.lower.lasting import once_lasting
from daemons.mc_cachenode.metrics import CachenodeMetrics
from daemons.mc_cachenode.puts.making_room import is_of_same_put, make_room
from daemons.mc_cachenode.puts.pull import PullOutcome, PullTask, pull
from daemons.mc_cachenode.puts.pull_near import are_small, pull_near
from daemons.mc_cachenode.puts.refusal import check_given_out, payload_bytes, refusal
from daemons.mc_cachenode.puts.shortages import Shortages
from daemons.mc_cachenode.replica import VERSION, Replica
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.mc_cachenode.reporter import Reporter
from daemons.protocol.block import BlockLocation, Put, PutBlock, PutReply, PutStatus
from daemons.protocol.tenant import tenant_of
from daemons.rpc import Call, Loop, Timer
from daemons.store.segment.copy_workers import CopyWorkers
from daemons.store.segment.seal import BadSeal, trailer_length
from daemons.transfer import TransferEngine

log = logging.getLogger(__name__)

_MAX_ANSWERS: Final = 4096
_STATUSES: Final[tuple[PutStatus, ...]] = get_args(PutStatus)
_MAX_WAITING_BLOCKS: Final = 4096
_JOB_BYTES: Final = 8 * MIB
"""A put is split into jobs of about this much, so that workers share it and sources take turns."""
_RETRY_AFTER_MS: Final = 50
_ASK_AGAIN_S: Final = 0.1


@dataclass(slots=True, eq=False)
class _Session:
    """A put in progress. `waiting`: indexes of blocks for which there is no room yet."""

    put: Put
    calls: list[Call]
    results: list[PutStatus]
    engine: TransferEngine
    """That pulls all of it: a client's put opens nothing that only daemons may open."""
    num_left: int = 0
    """Being pulled."""
    waiting: list[int] = field(default_factory=list)
    timer: Timer | None = None
    why: str = ""
    retry_after_ms: int | None = None
    indexes: dict[BlockHash, int] = field(default_factory=dict)
    untold: list[PullOutcome] = field(default_factory=list)
    """Recorded here; whoever else is to hear of them does after the answer."""


@dataclass(frozen=True, slots=True)
class PutParts:
    """What puts work with."""

    loop: Loop
    engine: TransferEngine
    outside: TransferEngine
    """For puts of clients: it opens no daemon's memory."""
    replicas: ReplicaTable
    workers: CopyWorkers
    reporter: Reporter
    metrics: CachenodeMetrics
    pull_timeout_s: float
    room_wait_s: float
    """How long a put waits for room; 0: not at all."""
    incarnation: Callable[[], Incarnation]
    """Of the latest master that this node has joined."""
    is_joined: Callable[[], bool]
    """Whether there is a master, which chooses victims."""
    may_evict: Callable[[], bool]
    """Whether this node chooses them itself: it has been without a master for too long."""
    leaves_later: Callable[[Replica], bool]
    """Whether a victim of ours is written to a lower tier first, and freed then."""
    locate: Callable[[Replica], BlockLocation]
    replaced: Callable[[Replica], Sequence[Future[bool]]]
    """It was sealed: done when no older version of it comes back, whatever memory is lost."""
    on_sealed: Callable[[Replica], object]
    drop: Callable[[Replica, str], object]
    """For a block that is found damaged."""


class Puts:
    """Those in progress, and the answers to those that are over."""

    def __init__(self, parts: PutParts) -> None:
        self._parts = parts
        self._sessions: dict[PutId, _Session] = {}
        self._answers: OrderedDict[PutId, PutReply] = OrderedDict()
        self._waiting: OrderedDict[PutId, _Session] = OrderedDict()
        """Those that came first get room first."""
        self._is_retrying = self._is_polling = False
        self._counters = {each: parts.metrics.put_blocks.labels(each) for each in _STATUSES}
        self.is_draining = False
        self.refused: dict[str, str] = {}
        """Tenants above their pool quota, and why nothing of theirs makes room."""
        self._shortages = Shortages(parts.replicas)
        parts.reporter.short_of = self._shortages.take
        parts.reporter.on_fitting = self._shortages.on_answer
        parts.replicas.on_room = self._on_room

    @property
    def num_puts(self) -> int:
        """In progress."""
        return len(self._sessions)

    def put(self, call: Call, message: Put) -> None:
        """Answered when all its blocks are sealed or refused."""
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
        check_given_out(message, self._parts.incarnation())
        is_clients = call.owner is not None and call.owner.role == "client"
        engine = self._parts.outside if is_clients else self._parts.engine
        session = _Session(message, [call], ["failed"] * len(message.blocks), engine)
        self._sessions[message.put_id] = session
        self._begin_all(session, range(len(message.blocks)))
        if session.waiting:
            self._wait(session, call)
        self._end_if_done(session)
        self._tell(session)

    def _begin_all(self, session: _Session, indexes: Sequence[int]) -> None:
        """What has no room waits."""
        tasks = []
        session.waiting = []
        for index in indexes:
            block = session.put.blocks[index]
            begun = self._begin(session, block)
            if isinstance(begun, Replica):
                session.indexes[block.meta.hash] = index
                tasks.append(PullTask(block, begun))
                continue
            session.results[index] = begun
            if begun == "already_sealed":
                session.indexes[block.meta.hash] = index
            elif begun == "exhausted":
                session.waiting.append(index)
        if tasks and are_small(tasks):
            tasks = self._pull_near(session, tasks)
        session.num_left += len(tasks)
        self._submit(session, tasks)

    def _begin(self, session: _Session, block: PutBlock) -> Replica | PutStatus:
        """A slot to pull into, or why there is nothing to pull."""
        why = refusal(block)
        if why is not None:
            session.why = f"block {short(block.meta.hash)} is malformed: {why}"
            return "failed"
        if block.version and self._parts.replicas.remembered.is_dead(
            block.meta.hash, block.version
        ):
            session.why = f"version {block.version} was deleted or replaced meanwhile"
            return "conflict"
        existing = self._parts.replicas.get(block.meta.hash)
        if existing is not None:
            status = self._compare(block, existing)
            if status is not None:
                return status
        why = self._refused_tenant(block) if self.refused else None
        if why is not None:
            return self._exhausted(session, Exhausted(why))
        try:
            return self._allocate(block)
        except Exhausted as error:
            return self._exhausted(session, Exhausted(f"{error.message}; {self._what_stays()}"))

    def _refused_tenant(self, block: PutBlock) -> str | None:
        meta = block.meta
        tenant = tenant_of(meta.tenant, meta.namespace, is_object=bool(block.version))
        return self.refused.get(tenant)

    def _what_stays(self) -> str:
        """What of this node's memory cannot make room now; the master counts leases and pins when it is full."""
        parts = self._parts
        return (
            f"{format_size(parts.replicas.writing_bytes)} being written, "
            f"{format_size(parts.reporter.leased_bytes)} leased to readers, "
            f"{format_size(parts.reporter.pinned_bytes)} pinned hard"
        )

    def _allocate(self, block: PutBlock) -> Replica:
        """Raises Exhausted when nothing is free yet."""
        parts, replicas, length = self._parts, self._parts.replicas, payload_bytes(block)
        version = block.version or VERSION
        try:
            return replicas.begin(block.meta, length, block.num_layers, version=version)
        except Exhausted:
            stays = partial(is_of_same_put, block.meta, block.version)
            may_choose = parts.is_joined() or parts.may_evict()
            if not (may_choose and self.make_room(length, block.num_layers, stays)):
                raise
        return replicas.begin(block.meta, length, block.num_layers, version=version)

    def make_room(
        self, length: int, num_layers: int, stays: Callable[[Replica], bool] = lambda _: False
    ) -> bool:
        """Whether any block went at once: without a master it is this node's own choice. Else the master is asked."""
        parts = self._parts
        if parts.is_joined():
            if self._shortages.want(length + trailer_length(num_layers)):
                parts.reporter.changed()
            return False
        freed = make_room(parts.replicas, length, num_layers, parts.leaves_later, stays)
        for block_hash in freed:
            parts.reporter.freed(block_hash)
            parts.metrics.freed_blocks.labels("own").inc()
        return bool(freed)

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
                self._parts.drop(existing, error.message)
                return None
            if list(sealed) != block.checksums:
                return "conflict"
        self._parts.replicas.touch(block.meta.hash)
        return "already_sealed"

    def _exhausted(self, session: _Session, error: Exhausted) -> PutStatus:
        session.why = error.message
        session.retry_after_ms = error.retry_after_ms or _RETRY_AFTER_MS
        return "exhausted"

    # Waiting for room.

    def _wait(self, session: _Session, call: Call) -> None:
        """Until there is room, or the time is over. At once where too many wait, or a block can never fit."""
        num_waiting = sum(len(each.waiting) for each in self._waiting.values())
        slab_bytes = self._parts.replicas.segments.slab_bytes
        blocks = [session.put.blocks[index] for index in session.waiting]
        may_fit = all(payload_bytes(block) <= slab_bytes for block in blocks)
        left_s = call.answer_by_s - self._parts.loop.clock()
        wait_s = min(self._parts.room_wait_s, left_s)
        if wait_s <= 0 or not may_fit or num_waiting + len(blocks) > _MAX_WAITING_BLOCKS:
            session.waiting = []
            return
        self._waiting[session.put.put_id] = session
        session.timer = self._parts.loop.call_later(wait_s, self._give_up, session)
        self._poll_later()

    def _poll_later(self) -> None:
        """What may go changes without anybody saying so: leases end."""
        if self._waiting and not self._is_polling:
            self._is_polling = True
            self._parts.loop.call_later(_ASK_AGAIN_S, self._poll)

    def _poll(self) -> None:
        self._is_polling = False
        self._on_room()
        self._poll_later()

    def _give_up(self, session: _Session) -> None:
        """What still waits is refused; its result says so already."""
        self._waiting.pop(session.put.put_id, None)
        session.waiting = []
        self._end_if_done(session)

    def _on_room(self) -> None:
        if self._waiting and not self._is_retrying:
            self._is_retrying = True
            self._parts.loop.call_later(0.0, self._retry)

    def _retry(self) -> None:
        self._is_retrying = False
        for session in list(self._waiting.values()):
            self._begin_all(session, session.waiting)
            if session.waiting:
                self._tell(session)
                return
            del self._waiting[session.put.put_id]
            if session.timer is not None:
                session.timer.cancel()
            session.why, session.retry_after_ms = "", None
            self._end_if_done(session)
            self._tell(session)

    # Pulling.

    def _pull_near(self, session: _Session, tasks: list[PullTask]) -> list[PullTask]:
        """Those that are left for the workers."""
        left = []
        for task in tasks:
            outcome = pull_near(session.engine, task)
            if outcome is None:
                left.append(task)
            else:
                self._record(session, outcome)
        return left

    def _submit(self, session: _Session, tasks: list[PullTask]) -> None:
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

    def _run(self, session: _Session, job: list[PullTask]) -> None:
        """On a worker."""
        parts = self._parts
        outcomes = [pull(session.engine, task, parts.pull_timeout_s) for task in job]
        parts.loop.call_soon_threadsafe(self._finish, session, outcomes)

    def _finish(self, session: _Session, outcomes: list[PullOutcome]) -> None:
        for outcome in outcomes:
            self._record(session, outcome)
        session.num_left -= len(outcomes)
        self._end_if_done(session)
        self._tell(session)

    def _record(self, session: _Session, outcome: PullOutcome) -> None:
        parts, replica = self._parts, outcome.task.replica
        index = session.indexes[replica.meta.hash]
        session.untold.append(outcome)
        if outcome.seal_checksum is None:
            parts.replicas.abandon(replica)
            session.results[index] = "failed"
            session.why = outcome.why
        elif parts.replicas.remembered.is_dead(replica.meta.hash, replica.version):
            parts.replicas.abandon(replica)
            session.results[index] = "conflict"
            session.why = "it was deleted or replaced while it was put"
        else:
            replica.wanted = outcome.task.block.wanted
            parts.replicas.seal(replica, outcome.seal_checksum)
            session.results[index] = "stored"
            self._replace(session, index, replica)

    def _replace(self, session: _Session, index: int, replica: Replica) -> None:
        """A version may only be said to be replaced once nothing brings it back."""
        waiting = self._parts.replaced(replica)
        if all(done.done() and done.exception() is None for done in waiting):
            return
        session.num_left += 1

        def end(error: BaseException | None) -> None:
            session.num_left -= 1
            if error is not None:
                session.results[index] = "failed"
                session.why = f"not sure that what it replaces stays away: {error}"
            self._end_if_done(session)

        self._parts.loop.call_later(0.0, once_lasting, self._parts.loop, waiting, end)

    def _tell(self, session: _Session) -> None:
        """Lower tiers, the master's next report, the metrics: in the same turn as the answer, and after it."""
        parts = self._parts
        for outcome in session.untold:
            parts.metrics.pull_seconds.observe(outcome.seconds)
            replica = outcome.task.replica
            if replica.state == "sealed":
                parts.on_sealed(replica)
                parts.metrics.pulled_bytes.inc(replica.length)
        session.untold.clear()

    def _end_if_done(self, session: _Session) -> None:
        if session.num_left or session.waiting:
            return
        reply = PutReply(
            results=session.results,
            why=session.why,
            retry_after_ms=session.retry_after_ms,
            locations=self._locations(session) if session.put.wants_locations else [],
        )
        del self._sessions[session.put.put_id]
        self._parts.replicas.flush()
        for call in session.calls:
            call.reply(reply)
        counts = {status: session.results.count(status) for status in set(session.results)}
        for status, count in counts.items():
            self._counters[status].inc(count)
        if "exhausted" in counts:
            self._parts.reporter.refused(counts["exhausted"])
        # These are no outcomes: the same put may be tried again.
        if not counts.keys() & {"exhausted", "failed", "being_written"}:
            self._answers[session.put.put_id] = reply
            if len(self._answers) > _MAX_ANSWERS:
                self._answers.popitem(last=False)

    def _locations(self, session: _Session) -> list[BlockLocation]:
        find, locate = self._parts.replicas.get, self._parts.locate
        found = [find(block_hash) for block_hash in session.indexes]
        return [locate(r) for r in found if r is not None and r.state == "sealed"]
