"""The bounded pool that pulls and hashes blocks, so that the control thread never copies.

Jobs of one source start in order, sources take turns, and beyond `max_queued` a job is refused: no hidden queue.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

from daemons.core.errors import Exhausted, Unavailable

log = logging.getLogger(__name__)

Job = Callable[[], None]
"""Reports its outcome itself; what it raises is a bug, logged, and the worker goes on."""

_RETRY_AFTER_MS = 50


class CopyWorkers:
    """Threads that run jobs. `max_queued` counts units (blocks), not jobs."""

    def __init__(self, num_workers: int, max_queued: int) -> None:
        self.max_queued = max_queued
        self._num_queued = 0
        self._queues: OrderedDict[Hashable, deque[tuple[Job, int]]] = OrderedDict()
        self._condition = threading.Condition()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"mc-copy-{index}", daemon=True)
            for index in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_workers(self) -> int:
        return len(self._threads)

    @property
    def num_queued(self) -> int:
        """Units waiting or running."""
        return self._num_queued

    def submit(self, source: Hashable, job: Job, num_units: int = 1) -> None:
        """Queue a job behind the others of its source. Raises Exhausted when too much waits."""
        with self._condition:
            if self._is_closed:
                raise Unavailable("this node is shutting down")
            if self._num_queued + num_units > self.max_queued:
                raise Exhausted(
                    f"{self._num_queued} blocks wait to be copied, the limit is {self.max_queued}",
                    retry_after_ms=_RETRY_AFTER_MS,
                )
            self._num_queued += num_units
            self._queues.setdefault(source, deque()).append((job, num_units))
            self._condition.notify()

    def close(self, timeout_s: float | None = None) -> None:
        """Finish the jobs in progress, or leave them behind after a time; drop those that wait."""
        with self._condition:
            self._is_closed = True
            self._queues.clear()
            self._condition.notify_all()
        for thread in self._threads:
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._queues and not self._is_closed:
                    self._condition.wait()
                if self._is_closed:
                    return
                job, num_units = self._take()
            try:
                job()
            except Exception:
                log.exception("copy job failed")
            finally:
                with self._condition:
                    self._num_queued -= num_units

    def _take(self) -> tuple[Job, int]:
        """The next job of the source whose turn it is; the source goes to the back."""
        source, jobs = next(iter(self._queues.items()))
        taken = jobs.popleft()
        if jobs:
            self._queues.move_to_end(source)
        else:
            del self._queues[source]
        return taken
