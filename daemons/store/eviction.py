"""Which blocks go first when a node is full: policies behind one interface, in a table by config name."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class EvictionCandidates:
    """Columns of equal length: the blocks of one node that may go (leased ones are left out before)."""

    used_s: NDArray[np.float64]
    depth: NDArray[np.uint32]
    num_bytes: NDArray[np.uint64]


class EvictionPolicy(Protocol):
    """Pure: the same candidates give the same choice."""

    def choose(self, candidates: EvictionCandidates, num_bytes: int) -> NDArray[np.intp]:
        """Indices in the order they should go: just enough for `num_bytes`, or all."""


class LeastRecentlyUsed:
    """Oldest use first, and among equals the deepest block of a prefix, so that a suffix goes before its prefix.

    The caller keeps every block at least as recent as the blocks that follow it, which makes the order hold for
    whole chains. Costs O(candidates): only the old end is sorted.
    """

    def choose(self, candidates: EvictionCandidates, num_bytes: int) -> NDArray[np.intp]:
        count = len(candidates.used_s)
        if count == 0 or num_bytes <= 0:
            return np.empty(0, np.intp)
        old = self._oldest(candidates, num_bytes)
        order = old[np.lexsort((-candidates.depth[old].astype(np.int64), candidates.used_s[old]))]
        freed = np.cumsum(candidates.num_bytes[order])
        enough = int(np.searchsorted(freed, num_bytes)) + 1
        return order[:enough]

    def _oldest(self, candidates: EvictionCandidates, num_bytes: int) -> NDArray[np.intp]:
        """A superset of the choice: everything not newer than the n-th oldest, n doubled until it is enough."""
        count = len(candidates.used_s)
        smallest = max(1, int(candidates.num_bytes.mean()))
        wanted = num_bytes // smallest + 16
        while wanted < count // 2:
            limit = np.partition(candidates.used_s, wanted)[wanted]
            old = np.flatnonzero(candidates.used_s <= limit)
            if int(candidates.num_bytes[old].sum()) >= num_bytes:
                return old
            wanted *= 2
        return np.arange(count)


POLICIES: dict[str, EvictionPolicy] = {"lru": LeastRecentlyUsed()}
