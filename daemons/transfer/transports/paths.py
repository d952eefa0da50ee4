"""A peer with several addresses: one pool of connections for each, a batch's slices spread over them by a PathBook.

What fails on one address is tried on another. A WRITE is only tried again once its first path is over: that is asked
of the target over a path that works. Bytes on their way that stop coming count as a failed path.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Generic

from daemons.core.errors import McError, Unavailable
from daemons.transfer.path_record import ASSUMED_BYTES_PER_S, Path, PathView
from daemons.transfer.plan import BatchId, PathBook, Send
from daemons.transfer.slices import Slice, Span
from daemons.transfer.transports.base import NotOver, ReadBatch, Unreachable, WriteBatch
from daemons.transfer.transports.fence import HalfClosed
from daemons.transfer.transports.sockets import TICK_S
from daemons.transfer.transports.stream import MAX_CONNECTIONS, StreamPool
from daemons.transfer.transports.stripes import B, EitherFlag, raise_first

STALL_S: Final = 1.0
"""No byte for so long: another path is tried. A peer whose paths all stall is reported then."""

CONNECT_TIMEOUT_S: Final = 0.5
"""Shorter than where there is only one way: what is probed must not hold up a batch for long."""

_STREAMS_PER_PATH: Final = 2
"""One is filled while the other waits for its next request."""
_FENCE_TIMEOUT_S: Final = 1.0


@dataclass(slots=True)
class _Job(Generic[B]):
    """One batch on its way; changed under the lock of its Paths, but for `stop`."""

    batch: B
    parts: Sequence[B]
    run: Callable[[StreamPool, B], None]
    may_repeat: bool
    number: BatchId
    is_over: bool = False
    errors: list[McError] = field(default_factory=list)
    """That end it."""
    last_failure: McError | None = None
    """Of a path."""
    stop: threading.Event = field(default_factory=threading.Event)


class Paths:
    """Thread safe; a batch runs in its caller's thread and in some of `workers`."""

    def __init__(self, pools: Mapping[str, StreamPool], links: Mapping[str, float | None]) -> None:
        """`links`: bytes a second of each path's link, None where nobody knows."""
        self._pools = dict(pools)
        self._book = PathBook(
            [
                Path(name, links[name] or ASSUMED_BYTES_PER_S, max_in_flight=MAX_CONNECTIONS)
                for name in pools
            ]
        )
        self._changed = threading.Condition()

    @property
    def num_paths(self) -> int:
        return len(self._pools)

    @property
    def last_used_s(self) -> float:
        return max(pool.last_used_s for pool in self._pools.values())

    def views(self) -> list[PathView]:
        with self._changed:
            return self._book.views(time.monotonic())

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def run(
        self,
        batch: B,
        parts: Sequence[B],
        run: Callable[[StreamPool, B], None],
        *,
        workers: ThreadPoolExecutor,
        may_repeat: bool,
    ) -> None:
        """Return or raise when all parts have ended.

        Unless `may_repeat`, another path is tried only where nothing moved.
        """
        slices = [Slice((Span(0, 0, n, i),), n) for i, n in enumerate(map(_length, parts))]
        with self._changed:
            job = _Job(batch, parts, run, may_repeat, self._book.submit(slices))
        num_helpers = min(len(parts), self.num_paths * _STREAMS_PER_PATH) - 1
        helpers = [workers.submit(self._work, job) for _ in range(num_helpers)]
        self._work(job)
        for helper in helpers:
            if not helper.cancel():
                helper.result()
        if job.errors:
            raise_first(batch, job.errors)
        if job.last_failure is not None and job.stop.is_set():
            raise job.last_failure

    def _work(self, job: _Job[B]) -> None:
        while (send := self._next(job)) is not None:
            part = job.parts[send.slice.spans[0].buffer]
            part.deadline_s = job.batch.deadline_s
            part.cancelled = EitherFlag(job.batch.cancelled, job.stop)
            part.stall_s = min(STALL_S, job.batch.stall_s or STALL_S)
            try:
                job.run(self._pools[send.path], part)
            except McError as error:
                self._failed(job, send, error)
            else:
                self._end(job, send, None)

    def _next(self, job: _Job[B]) -> Send | None:
        """Waits while others carry what is left, or all paths are full; None when the job is over."""
        with self._changed:
            while not job.is_over:
                now_s = time.monotonic()
                send = self._book.next(now_s, job.number)
                if send is not None:
                    return send
                try:
                    remaining_s = job.batch.remaining_s()
                except McError as error:
                    self._give_up(job, error)
                    continue
                # A tick: nobody notifies when a pause ends.
                self._changed.wait(min(remaining_s, TICK_S))
        return None

    def _give_up(self, job: _Job[B], error: McError) -> None:
        """What is in flight still ends by itself, soon."""
        if not job.stop.is_set():
            job.errors.append(error)
            job.stop.set()
        if self._book.cancel(job.number, error.message):
            self._over(job)
        else:
            self._changed.wait(TICK_S)

    def _failed(self, job: _Job[B], send: Send, error: McError) -> None:
        if isinstance(error, NotOver) and self._fence(job, send.path, error):
            error = Unavailable(error.message)
        is_of_path = (
            isinstance(error, Unavailable if job.may_repeat else Unreachable)
            and not isinstance(error, NotOver)
            and not job.stop.is_set()
            and time.monotonic() < job.batch.deadline_s
        )
        if is_of_path:
            self._pools[send.path].drop_idle()
        self._end(job, send, error, is_of_path=is_of_path)

    def _end(
        self, job: _Job[B], send: Send, error: McError | None, *, is_of_path: bool = False
    ) -> None:
        with self._changed:
            now_s = time.monotonic()
            if error is None:
                end = self._book.completed(send.ticket, now_s)
            else:
                end = self._book.failed(send.ticket, error.message, now_s, may_retry=is_of_path)
                if is_of_path:
                    job.last_failure = error
                else:
                    job.errors.append(error)
                    job.stop.set()
            if end is not None:
                if end.error:
                    job.stop.set()
                self._over(job)
            self._changed.notify_all()

    def _over(self, job: _Job[B]) -> None:
        job.is_over = True
        self._changed.notify_all()

    def _fence(self, job: _Job[B], failed: str, error: NotOver) -> bool:
        """Have the target end the lost connection, asked for over another path."""
        lost = error.path
        if not isinstance(lost, HalfClosed) or not lost.token:
            return False
        with self._changed:
            views = self._book.views(time.monotonic())
        for view in sorted(views, key=lambda view: view.pause_s):
            if view.name == failed:
                continue
            region = job.batch.region
            if self._pools[view.name].fence(region, lost.token, _FENCE_TIMEOUT_S):
                lost.was_ended()
                return True
        return False


def _length(part: ReadBatch | WriteBatch) -> int:
    return part.length
