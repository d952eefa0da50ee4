"""Reads by workers: bounded, fair between readers, and all answered when the tier ends."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future

from daemons.core.errors import McError
from daemons.store.segment.copy_workers import CopyWorkers


class ReadPool:
    """`close` answers those that run too: their jobs must not touch memory afterwards."""

    def __init__(self, num_workers: int, max_queued: int) -> None:
        self._workers = CopyWorkers(num_workers, max_queued)
        self._lock = threading.Lock()
        self._reads: set[Future[None]] = set()

    def submit(self, reader: Hashable, read: Callable[[], object]) -> "Future[None]":
        """Raises Exhausted when too many wait, Unavailable at the end."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()

        def job() -> None:
            try:
                read()
            except Exception as error:  # noqa: BLE001  # whoever waits gets it, a bug too
                self._end(done, error)
            else:
                self._end(done, None)

        with self._lock:
            self._reads.add(done)
        try:
            self._workers.submit(reader, job)
        except McError:
            with self._lock:
                self._reads.discard(done)
            raise
        return done

    def close(self, error: McError, timeout_s: float | None) -> None:
        """Waits so long for those in progress; all others, and what is still running then, get the error."""
        self._workers.close(timeout_s)
        with self._lock:
            left = list(self._reads)
        for done in left:
            self._end(done, error)

    def _end(self, done: "Future[None]", error: Exception | None) -> None:
        with self._lock:
            if done not in self._reads:
                return
            self._reads.discard(done)
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
