"""The threads of a data port that serve requests, for peers of one kind."""

import threading
from concurrent.futures import ThreadPoolExecutor


class Workers:
    """A quarter of them may stay with busy peers: the others are free for all."""

    def __init__(self, count: int, name: str) -> None:
        self.pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._free_to_linger = threading.Semaphore(count // 4)

    def linger(self) -> bool:
        """Whether one more may; then it calls `end_lingering`."""
        return self._free_to_linger.acquire(blocking=False)

    def end_lingering(self) -> None:
        self._free_to_linger.release()
