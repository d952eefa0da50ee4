"""Where objects were when the master, or a put of our own, last said: a get that finds its name here asks nobody.

An entry may be old. A node voids an object's trailer before it gives the place up, so what was deleted or replaced
since does not verify; and entries end with their lease, so that the master hears what is in use.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import Final

from daemons.client.object_reader import Place

_MAX_NAMES: Final = 65_536


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
        self._lock = threading.Lock()

    def get(self, name: bytes) -> Found | None:
        found = self._found.get(name)
        return found if found is not None and found.until_s > time.monotonic() else None

    def put(self, name: bytes, found: Found) -> None:
        """The oldest goes when there are too many."""
        with self._lock:
            self._found.pop(name, None)
            self._found[name] = Found(
                found.places, found.value_bytes, found.until_s, True, found.chunks
            )
            if len(self._found) > _MAX_NAMES:
                del self._found[next(iter(self._found))]

    def drop(self, name: bytes) -> None:
        with self._lock:
            self._found.pop(name, None)
