"""Pulls of the blocks that have a slot: small ones at once, the others by workers; each is sealed or given up."""

from collections.abc import Callable
from typing import Final

from daemons.core.errors import Exhausted
from daemons.core.units import MIB
from daemons.mc_cachenode.lower.lasting import once_lasting
from daemons.mc_cachenode.puts.pull import PullOutcome, PullTask, pull
from daemons.mc_cachenode.puts.pull_near import are_small, pull_near
from daemons.mc_cachenode.puts.session import PutParts, PutSession
from daemons.mc_cachenode.replica import Replica

_JOB_BYTES: Final = 8 * MIB
"""A put is split into jobs of about this much, so that workers share it and sources take turns."""


class Pulling:
    """Loop thread only; copying is the workers'."""

    def __init__(self, parts: PutParts, settle: Callable[[PutSession], object]) -> None:
        """`settle` is called when something of a put has ended later: it answers it if nothing is left."""
        self._parts = parts
        self._settle = settle

    def start(self, session: PutSession, tasks: list[PullTask]) -> None:
        """What is near and small is recorded when this returns."""
        if are_small(tasks):
            tasks = self._pull_near(session, tasks)
        session.num_left += len(tasks)
        self._submit(session, tasks)

    def _pull_near(self, session: PutSession, tasks: list[PullTask]) -> list[PullTask]:
        """Those that are left for the workers."""
        left = []
        for task in tasks:
            outcome = pull_near(session.engine, task)
            if outcome is None:
                left.append(task)
            else:
                self._record(session, outcome)
        return left

    def _submit(self, session: PutSession, tasks: list[PullTask]) -> None:
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
                    session.results[index] = session.exhausted(error)
                    self._parts.replicas.abandon(task.replica)
                session.num_left -= len(job)

    def _run(self, session: PutSession, job: list[PullTask]) -> None:
        """On a worker."""
        parts = self._parts
        outcomes = [pull(session.engine, task, parts.pull_timeout_s) for task in job]
        parts.loop.call_soon_threadsafe(self._finish, session, outcomes)

    def _finish(self, session: PutSession, outcomes: list[PullOutcome]) -> None:
        for outcome in outcomes:
            self._record(session, outcome)
        session.num_left -= len(outcomes)
        self._settle(session)

    def _record(self, session: PutSession, outcome: PullOutcome) -> None:
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

    def _replace(self, session: PutSession, index: int, replica: Replica) -> None:
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
            self._settle(session)

        self._parts.loop.call_later(0.0, once_lasting, self._parts.loop, waiting, end)
