"""Where objects were when the master, or a put of our own, last said: a get that finds its name here asks nobody.

An entry may be old. A node voids an object's trailer before it gives the place up, so what was deleted or replaced
since does not verify; and entries end with their lease, so that the master hears what is in use.
"""

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from daemons.client.objects.reader import Place
from daemons.core.ids import BlockHash, NodeId

_MAX_NAMES: Final = 65_536
_REPORT_S: Final = 1.0
_FLOOR_S: Final = 60.0
"""Until a node that was away since it sealed a put of ours is taken to be lost, with what only it had."""
_UNHEARD_S: Final = 10.0
"""A node's report may take so long on a host that is short of everything; what it seldom takes is a hundredth."""


@dataclass(frozen=True, slots=True)
class Found:
    """Replicas of one object, the best first."""

    places: list[Place]
    value_bytes: int
    until_s: float
    is_cached: bool = False
    chunks: dict[int, list[Place]] = field(default_factory=dict)
    """By index, those that were looked up."""


class Unheard(NamedTuple):
    """A put of our own."""

    put_s: float
    node: NodeId
    key: BlockHash
    version: int


class ObjectCache:
    """By name, of one namespace. Thread safe by single operations on a dict."""

    def __init__(self) -> None:
        self._found: dict[bytes, Found] = {}
        self._own: dict[bytes, tuple[float, int]] = {}
        """When we put it, and as which version."""
        self._unheard: dict[bytes, Unheard] = {}
        """Until the master is known to have heard of it; the oldest is the first."""
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
            self._unheard.pop(name, None)

    def put_own(self, name: bytes, found: Found) -> None:
        """Of a put of our own, said to be cached: for a moment the master does not know it yet."""
        now_s, at = time.monotonic(), found.places[0].location
        with self._lock:
            self._put(name, found)
            entries: list[tuple[dict[bytes, Any], Any]] = [
                (self._own, (now_s, at.version)),
                (self._unheard, Unheard(now_s, at.node, at.hash, at.version)),
            ]
            for known, entry in entries:
                known.pop(name, None)  # to the end: the oldest is the first
                known[name] = entry
                if len(known) > _MAX_NAMES:
                    del known[next(iter(known))]

    def is_own(self, name: bytes) -> bool:
        """Whether it was put so lately that the master's word on it means nothing."""
        own = self._own.get(name)
        return own is not None and time.monotonic() - own[0] < _REPORT_S

    def floor_of(self, name: bytes) -> int:
        """Our own put's version, below which nothing is true any more; 0 for names that we did not put lately."""
        own = self._own.get(name)
        return own[1] if own is not None and time.monotonic() - own[0] < _FLOOR_S else 0

    def unheard(self, names: Collection[bytes] | None) -> list[Unheard]:
        """What we put lately and the master may not have heard of: of these names, or of each node the newest.

        A node reports in the order in which it seals.
        """
        since_s = time.monotonic() - _UNHEARD_S
        with self._lock:
            known = self._unheard
            while known and next(iter(known.values())).put_s < since_s:
                del known[next(iter(known))]
            if names is not None:
                return [known[name] for name in names if name in known]
            return list({each.node: each for each in known.values()}.values())

    def heard(self, told: Sequence[Unheard]) -> None:
        """The master has, so it has of all that was put there before."""
        until_s = {each.node: each.put_s for each in told}
        with self._lock:
            self._unheard = {
                name: each
                for name, each in self._unheard.items()
                if each.put_s > until_s.get(each.node, 0.0)
            }
