"""How fast a tier gives its blocks back, measured while it is read: bytes over the time in which a read was under way.

Pure. Old readings fade, so that a disk that got slower, or idle, is seen within some seconds of reading.
"""

from typing import Final

_FADE_S: Final = 10.0
"""Of busy time."""


class ReadRate:
    """Begin and end of every read, at the caller's time."""

    def __init__(self) -> None:
        self._num_running = 0
        self._since_s = 0.0
        self._busy_s = 0.0
        self._num_bytes = 0.0

    @property
    def bytes_per_s(self) -> int:
        """0 until a read has ended."""
        return int(self._num_bytes / self._busy_s) if self._busy_s > 0 else 0

    def begin(self, now_s: float) -> None:
        self._count(now_s)
        self._num_running += 1

    def end(self, num_bytes: int, now_s: float) -> None:
        """`num_bytes` 0 for a read that failed: its time counts."""
        self._count(now_s)
        self._num_running -= 1
        self._num_bytes += num_bytes

    def _count(self, now_s: float) -> None:
        if self._num_running:
            self._busy_s += now_s - self._since_s
            if self._busy_s > _FADE_S:
                self._num_bytes /= 2
                self._busy_s /= 2
        self._since_s = now_s
