"""Messages that arrive behind the data of a batch: a bounded queue of the owner."""

import threading
import time
from collections import deque
from typing import NamedTuple

MAX_MESSAGE_BYTES = 64 << 10


class Notification(NamedTuple):
    """The bytes it speaks of are readable in `region_id`."""

    region_id: int
    message: bytes


class Notifications:
    """Thread safe. A full queue refuses: its sender hears of it and may repeat the message, not the data."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._queue: deque[Notification] = deque()
        self._arrived = threading.Condition()

    def put(self, notification: Notification) -> bool:
        with self._arrived:
            if len(self._queue) >= self._capacity:
                return False
            self._queue.append(notification)
            self._arrived.notify()
            return True

    def take(self, timeout_s: float) -> list[Notification]:
        """All that are there, oldest first; waits for the first one up to `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        with self._arrived:
            while not self._queue:
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0 or not self._arrived.wait(remaining_s):
                    break
            taken = list(self._queue)
            self._queue.clear()
        return taken
