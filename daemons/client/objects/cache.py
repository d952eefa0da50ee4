"""Where objects were when the master, or a put of our own, last said: a get that finds its name here asks nobody.

An entry may be old. A node voids an object's trailer before it gives the place up, so what was deleted or replaced
since does not verify; and entries end with their lease, so that the master hears what is in use.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import Final

from daemons.client.objects.reader import Place

_MAX_NAMES: Final = 65_536
_REPORT_S: Final = 1.0
_FLOOR_S: Final = 60.0
"""Until a node that was away since it sealed a put of ours is taken to be lost, with what only it had."""
_LIST_WAIT_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Found:
    """Replicas of one object, the best first."""

    places: list[Place]
    value_bytes: int
    until_s: float
    is_cached: bool = False
    chunks: dict[int, list[Place]] = field(default_factory=dict)
    """By index, those that were looked up."""


class ObjectCache:
    """By name, of one namespace. Thread safe by single operations on a dict."""

    def __init__(self) -> None:
        self._found: dict[bytes, Found] = {}
        self._own: dict[bytes, tuple[float, int]] = {}
        """When we put it, and as which version."""
        self._last_own_s = 0.0
        self._lock = threading.Lock()

    def get(self, name: bytes) -> Found | None:
        found = self._found.get(name)
        return found if found is not None and found.until_s > time.monotonic() else None

    def put(self, name: bytes, found: Found) -> None:
        """The oldest goes when there are too many."""
        with self._lock:
            self._put(
                name, Found(found.places, found.value_bytes, found.until_s, True, found.chunks)
            )

    def _put(self, name: bytes, found: Found) -> None:
        self._found.pop(name, None)
        self._found[name] = found
        if len(self._found) > _MAX_NAMES:
            del self._found[next(iter(self._found))]

    def drop(self, name: bytes) -> None:
        """Where it was is not where it is; what we put of it stays true."""
        with self._lock:
            self._found.pop(name, None)

    def forget(self, name: bytes) -> None:
        """It was deleted, or a put of it has an end that is not known."""
        with self._lock:
            self._found.pop(name, None)
            self._own.pop(name, None)

    def put_own(self, name: bytes, found: Found) -> None:
        """Of a put of our own, said to be cached: for a moment the master does not know it yet."""
        now_s = time.monotonic()
        with self._lock:
            self._put(name, found)
            self._own.pop(name, None)  # to the end: the oldest is the first
            self._own[name] = now_s, found.places[0].location.version
            self._last_own_s = now_s
            if len(self._own) > _MAX_NAMES:
                del self._own[next(iter(self._own))]

    def is_own(self, name: bytes) -> bool:
        """Whether it was put so lately that the master's word on it means nothing."""
        own = self._own.get(name)
        return own is not None and time.monotonic() - own[0] < _REPORT_S

    def floor_of(self, name: bytes) -> int:
        """Our own put's version, below which nothing is true any more; 0 for names that we did not put lately."""
        own = self._own.get(name)
        return own[1] if own is not None and time.monotonic() - own[0] < _FLOOR_S else 0

    @property
    def unreported_s(self) -> float:
        """Until the master knows of all puts of our own, as far as waiting for the nodes' reports can tell."""
        left_s = self._last_own_s + _LIST_WAIT_S - time.monotonic()
        return max(0.0, min(_LIST_WAIT_S, left_s))
