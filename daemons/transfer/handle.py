"""A submitted list of batches, slice by slice: what has been moved, what failed, and when it is really over."""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Literal, NamedTuple

from daemons.core.errors import Exhausted, McError, Unavailable
from daemons.transfer.transports.base import Cancelled, NotOver, ReadBatch, WriteBatch

_NUM_WORKERS = 4
_MAX_SUBMITTED = 1024
"""Lists that wait or run; who submits more waits for some of them first."""

State = Literal["waiting", "running", "done", "failed", "cancelled"]


class SliceStatus(NamedTuple):
    """One Read or Write. `num_bytes` of it are in place; only "done" says that they may be trusted."""

    state: State
    num_bytes: int
    length: int


class BatchStatus:
    """Written by the thread that runs the batch, read by anyone."""

    def __init__(self, batch: ReadBatch | WriteBatch) -> None:
        parts = batch.reads if isinstance(batch, ReadBatch) else batch.writes
        self._lengths = [part.remote.length for part in parts]
        self._moved = [False] * len(parts)
        self.state: State = "waiting"

    def moved(self, index: int) -> None:
        self._moved[index] = True

    def before(self, progress: Callable[[int], None] | None) -> Callable[[int], None]:
        """`moved`, and then what else wants to hear of it."""
        if progress is None:
            return self.moved

        def both(index: int) -> None:
            self.moved(index)
            progress(index)

        return both

    def slices(self) -> list[SliceStatus]:
        state = self.state
        return [
            SliceStatus(state, length if state == "done" or is_moved else 0, length)
            for length, is_moved in zip(self._lengths, self._moved, strict=True)
        ]


class Handle:
    """Local memory may be reused, and a WRITE can no longer land, once `is_over`; not before."""

    def __init__(self, batches: Sequence[BatchStatus], cancelled: threading.Event) -> None:
        self._batches = batches
        self._cancelled = cancelled
        self.future: Future[None]
        """Set by the engine right after it was made."""

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self.future.done()

    @property
    def is_over(self) -> bool:
        """Done, and no WRITE of it can still land at a target that does not answer."""
        return self.future.done() and self.fence(0.0)

    def slices(self) -> list[SliceStatus]:
        """Of all batches, in order. A WRITE that was given up is "running" until its path is closed."""
        is_done, is_over = self.future.done(), self.is_over
        return [
            part._replace(state=self._state(part.state, is_done, is_over))
            for batch in self._batches
            for part in batch.slices()
        ]

    def _state(self, state: State, is_done: bool, is_over: bool) -> State:
        if state in ("failed", "cancelled") and not is_over:
            return "running"
        if is_done and state in ("waiting", "running"):  # it never began, or a callback raised
            return "cancelled" if self.future.cancelled() else "failed"
        return state

    def cancel(self) -> None:
        """Ask it to stop; `wait` then raises Cancelled, unless it was done before. What waits ends at once."""
        self._cancelled.set()
        self.future.cancel()

    def wait(self, timeout_s: float | None = None) -> None:
        """Raise what went wrong; `Unavailable` when it still runs after `timeout_s`."""
        try:
            self.future.result(timeout_s)
        except FutureTimeoutError as error:
            raise Unavailable(f"transfer still runs after {timeout_s:g} s") from error
        except CancelledError as error:
            raise Cancelled(
                "the transfer was cancelled, or its engine closed, before it began"
            ) from error

    def fence(self, timeout_s: float) -> bool:
        """Wait until it is over; False when a target has still not closed its side of a given-up WRITE."""
        deadline_s = time.monotonic() + timeout_s
        try:
            error = self.future.exception(timeout_s)
        except FutureTimeoutError:
            return False
        except CancelledError:
            return True
        if not isinstance(error, NotOver):
            return True
        return error.path.wait_closed(max(0.0, deadline_s - time.monotonic()))


class Submissions:
    """Runs lists of batches on a few threads, which start with the first. Thread safe."""

    def __init__(self, run: Callable[[ReadBatch | WriteBatch], None]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._workers: ThreadPoolExecutor | None = None
        self._num_submitted = 0
        self._is_closed = False

    def submit(self, batches: Sequence[ReadBatch | WriteBatch]) -> Handle:
        """One after the other, up to the first that fails. Raises Exhausted, and Unavailable once closed."""
        cancelled = threading.Event()
        statuses = [BatchStatus(batch) for batch in batches]
        mine = [
            dataclasses.replace(batch, cancelled=cancelled, progress=status.before(batch.progress))
            for batch, status in zip(batches, statuses, strict=True)
        ]
        handle = Handle(statuses, cancelled)
        with self._lock:
            if self._is_closed:
                raise Unavailable("this Transfer Engine is closed")
            if self._num_submitted >= _MAX_SUBMITTED:
                raise Exhausted(f"{_MAX_SUBMITTED} submitted transfers are not done; wait for some")
            if self._workers is None:
                self._workers = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="mc-transfer")
            handle.future = self._workers.submit(run_in_order, self._run, mine, statuses, cancelled)
            self._num_submitted += 1
        handle.future.add_done_callback(self._ended)
        return handle

    def close(self) -> None:
        """Waits for what runs; what has not begun never does."""
        with self._lock:
            self._is_closed = True
        if self._workers is not None:
            self._workers.shutdown(cancel_futures=True)

    def _ended(self, _: Future[None]) -> None:
        with self._lock:
            self._num_submitted -= 1


def run_in_order(
    run: Callable[[ReadBatch | WriteBatch], None],
    batches: Sequence[ReadBatch | WriteBatch],
    statuses: Sequence[BatchStatus],
    cancelled: threading.Event,
) -> None:
    """Up to the first that fails; those behind it share its end. Raises what it raised."""
    failure: McError | None = None
    for batch, status in zip(batches, statuses, strict=True):
        if failure is None:
            status.state = "running"
            try:
                run(batch)
            except McError as error:
                failure = error
        status.state = _state_after(failure, cancelled)
    if failure is not None:
        raise failure


def _state_after(error: McError | None, cancelled: threading.Event) -> State:
    if error is None:
        return "done"
    is_cancelled = isinstance(error, Cancelled) or (
        isinstance(error, NotOver) and cancelled.is_set()
    )
    return "cancelled" if is_cancelled else "failed"
