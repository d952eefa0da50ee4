"""Puts: a slot for each block, its pull by a worker, its seal, the answer. In a full node a put waits a bounded time.

Loop thread only. All calls that carry one put_id get one answer, also when it is repeated.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, get_args

from daemons.core.errors import Unavailable
from daemons.core.ids import PutId
from daemons.mc_cachenode.puts.admission import Admission
from daemons.mc_cachenode.puts.pull import PullTask
from daemons.mc_cachenode.puts.pulling import Pulling
from daemons.mc_cachenode.puts.refusal import check_given_out
from daemons.mc_cachenode.puts.room_queue import RoomQueue
from daemons.mc_cachenode.puts.session import PutParts, PutSession
from daemons.mc_cachenode.replica import Replica
from daemons.protocol.block import BlockLocation, Put, PutReply, PutStatus
from daemons.rpc import Call

_MAX_ANSWERS: Final = 4096
_STATUSES: Final[tuple[PutStatus, ...]] = get_args(PutStatus)


class Puts:
    """Those in progress, and the answers to those that are over."""

    def __init__(self, parts: PutParts) -> None:
        self._parts = parts
        self._sessions: dict[PutId, PutSession] = {}
        self._answers: OrderedDict[PutId, PutReply] = OrderedDict()
        self._counters = {each: parts.metrics.put_blocks.labels(each) for each in _STATUSES}
        self.is_draining = False
        self.admission = Admission(parts)
        self._pulling = Pulling(parts, self._settle)
        self._queue = RoomQueue(
            parts.loop,
            parts.replicas.segments,
            parts.room_wait_s,
            begin=lambda session: self._begin_all(session, session.waiting),
            settle=self._settle,
        )
        parts.replicas.on_room = self._queue.on_room

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
        session = PutSession(message, [call], ["failed"] * len(message.blocks), engine)
        self._sessions[message.put_id] = session
        self._begin_all(session, range(len(message.blocks)))
        if session.waiting:
            self._queue.wait(session, call)
        self._settle(session)

    def _begin_all(self, session: PutSession, indexes: Sequence[int]) -> None:
        """What has no room waits."""
        tasks = []
        session.waiting = []
        for index in indexes:
            block = session.put.blocks[index]
            begun = self.admission.begin(session, block)
            if isinstance(begun, Replica):
                session.indexes[block.meta.hash] = index
                tasks.append(PullTask(block, begun))
                continue
            session.results[index] = begun
            if begun == "already_sealed":
                session.indexes[block.meta.hash] = index
            elif begun == "exhausted":
                session.waiting.append(index)
        if tasks:
            self._pulling.start(session, tasks)

    def _settle(self, session: PutSession) -> None:
        """Answer it if nothing is left of it. Then lower tiers, the master's next report, the metrics hear what was
        pulled: in the same turn as the answer, and after it."""
        if not (session.num_left or session.waiting):
            self._answer(session)
        parts = self._parts
        for outcome in session.untold:
            parts.metrics.pull_seconds.observe(outcome.seconds)
            replica = outcome.task.replica
            if replica.state == "sealed":
                parts.on_sealed(replica)
                parts.metrics.pulled_bytes.inc(replica.length)
        session.untold.clear()

    def _answer(self, session: PutSession) -> None:
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

    def _locations(self, session: PutSession) -> list[BlockLocation]:
        find, locate = self._parts.replicas.get, self._parts.locate
        found = [find(block_hash) for block_hash in session.indexes]
        return [locate(r) for r in found if r is not None and r.state == "sealed"]
