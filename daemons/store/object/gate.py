"""Access to memory that others will take away: after `shut` nobody is inside, however long his call still runs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Inside one only copies, which is short; calls to the store are made outside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_inside = 0
        self._is_shut = False

    @contextmanager
    def inside(self) -> Iterator[bool]:
        """False when it is shut: keep off."""
        with self._changed:
            is_open = not self._is_shut
            self._num_inside += is_open
        try:
            yield is_open
        finally:
            with self._changed:
                self._num_inside -= is_open
                self._changed.notify_all()

    def shut(self) -> None:
        with self._changed:
            self._is_shut = True
            while self._num_inside:
                self._changed.wait()
