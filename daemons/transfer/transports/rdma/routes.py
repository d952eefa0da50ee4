"""The paths to one peer, pairs of devices: a PathBook that several transfers ask at once."""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from daemons.transfer.path_record import ASSUMED_BYTES_PER_S, Path, PathPolicy
from daemons.transfer.plan import BatchEnd, BatchId, PathBook, Send
from daemons.transfer.slices import Slice

_POLICY: Final = PathPolicy(pause_s=1.0)
"""A trial of a dead path takes as long as its retries do."""
_UNBOUND: Final = 1 << 20
"""Each transfer bounds what it has under way, by its queue pairs."""


class Routes:
    """Thread safe; a path is known by its name."""

    def __init__(self, links: Mapping[str, float | None]) -> None:
        """Each path's link speed in bytes a second, None where it is not known."""
        paths = [
            Path(name, speed or ASSUMED_BYTES_PER_S, max_in_flight=_UNBOUND)
            for name, speed in links.items()
        ]
        self._book = PathBook(paths, _POLICY)
        self._lock = threading.Lock()
        self._why: dict[str, str] = {}

    def usable(self, near: Collection[str] = ()) -> list[str]:
        """Those that are not paused, near and idle ones first."""
        with self._lock:
            views = self._book.views(time.monotonic())
        usable = [view for view in views if view.state != "paused"]
        usable.sort(key=lambda v: (v.name not in near, v.outstanding_bytes / v.bytes_per_s))
        return [view.name for view in usable]

    def submit(self, slices: Sequence[Slice], near: Collection[str] = ()) -> BatchId:
        with self._lock:
            return self._book.submit(slices, near)

    def next(self, batch: BatchId, room: Mapping[str, bool]) -> Send | None:
        with self._lock:
            return self._book.next(time.monotonic(), batch, room)

    def completed(self, send: Send) -> BatchEnd | None:
        with self._lock:
            if send.is_trial:
                self._why.pop(send.path, None)
            return self._book.completed(send.ticket, time.monotonic())

    def failed(self, send: Send, why: str, *, is_of_path: bool) -> BatchEnd | None:
        """Unless the path is at fault, the batch ends with this."""
        with self._lock:
            if is_of_path:
                self._why[send.path] = why
            return self._book.failed(send.ticket, why, time.monotonic(), may_retry=is_of_path)

    def blame(self, path: str, why: str) -> None:
        """It could not be connected."""
        with self._lock:
            self._why[path] = why
            self._book.blame(path, time.monotonic())

    def cancel(self, batch: BatchId, why: str) -> None:
        with self._lock:
            self._book.cancel(batch, why)

    def reasons(self) -> str:
        """Why paths failed that did not work since."""
        with self._lock:
            return "; ".join(sorted(set(self._why.values())))

    def check_idle(self) -> None:
        """For tests: nothing is under way."""
        with self._lock:
            self._book.check_invariants()
            assert not any(view.num_in_flight for view in self._book.views(time.monotonic()))
