"""Which blocks go first when a node is full: policies behind one interface, in a table by config name.

Every order here keeps prefixes whole: a block never goes before the blocks that follow it. That holds because each
column falls along a prefix (used_s, heat) or rises (depth), which the directory sees to.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from daemons.store.eviction.heat import HALF_LIFE_S

DEPTH_TOKENS_PER_S = 256
"""One second of age for every so many tokens before a block; measured on the published conversation trace."""


@dataclass(frozen=True, slots=True)
class EvictionCandidates:
    """Columns of equal length: the blocks of one node that may go (leased ones are left out before)."""

    used_s: NDArray[np.float64]
    depth: NDArray[np.uint32]
    num_bytes: NDArray[np.uint64]
    heat: NDArray[np.float64] | None = None
    """Only for a policy that needs it."""
    num_tokens: NDArray[np.uint32] | None = None


class EvictionPolicy(Protocol):
    """Pure: the same candidates give the same choice."""

    needs_heat: bool

    def choose(self, candidates: EvictionCandidates, num_bytes: int) -> NDArray[np.intp]:
        """Indices in the order they should go: just enough for `num_bytes`, or all."""


class LeastRecentlyUsed:
    """Oldest use first, and among equals the deepest block of a prefix, so that a suffix goes before its prefix."""

    needs_heat = False

    def choose(self, candidates: EvictionCandidates, num_bytes: int) -> NDArray[np.intp]:
        return _lowest(candidates.used_s, candidates, num_bytes)


class LeastFrequentlyUsed:
    """The least heat first: uses, of which each counts half as much every HALF_LIFE_S, so once-hot blocks leave too.

    Among equals as LeastRecentlyUsed. Source: LRFU (Lee et al., 2001) with the memory of what was evicted of
    TinyLFU (Einziger et al., 2017).
    """

    needs_heat = True

    def choose(self, candidates: EvictionCandidates, num_bytes: int) -> NDArray[np.intp]:
        assert candidates.heat is not None
        return _lowest(candidates.heat, candidates, num_bytes)


class DepthAware:
    """As LeastFrequentlyUsed, but the end of a long prefix is as if it had been used a little earlier.

    The beginning of a prefix is shared by more requests than its end. A cache that is small for its traffic keeps
    more beginnings this way than ends that nobody asks for again.
    """

    needs_heat = True

    def choose(self, candidates: EvictionCandidates, num_bytes: int) -> NDArray[np.intp]:
        assert candidates.heat is not None
        assert candidates.num_tokens is not None
        with np.errstate(divide="ignore"):  # a heat that faded to nothing is the lowest there is
            heat_s = HALF_LIFE_S * np.log2(candidates.heat)
        before = candidates.depth.astype(np.float64) * candidates.num_tokens
        return _lowest(heat_s - before / DEPTH_TOKENS_PER_S, candidates, num_bytes)


def _lowest(
    value: NDArray[np.float64], candidates: EvictionCandidates, num_bytes: int
) -> NDArray[np.intp]:
    """Least value first, then oldest, then deepest. Costs O(candidates): only the low end is sorted."""
    if len(value) == 0 or num_bytes <= 0:
        return np.empty(0, np.intp)
    low = _low_end(value, candidates.num_bytes, num_bytes)
    keys = [-candidates.depth[low].astype(np.int64), candidates.used_s[low]]
    if value is not candidates.used_s:
        keys.append(value[low])
    order = low[np.lexsort(keys)]
    freed = np.cumsum(candidates.num_bytes[order])
    enough = int(np.searchsorted(freed, num_bytes)) + 1
    return order[:enough]


def _low_end(
    value: NDArray[np.float64], sizes: NDArray[np.uint64], num_bytes: int
) -> NDArray[np.intp]:
    """A superset of the choice: everything not above the n-th lowest, n doubled until it is enough."""
    wanted = num_bytes // max(1, int(sizes.mean())) + 16
    while wanted < len(value) // 2:
        low = np.flatnonzero(value <= np.partition(value, wanted)[wanted])
        if int(sizes[low].sum()) >= num_bytes:
            return low
        wanted *= 2
    return np.arange(len(value))


POLICIES: dict[str, EvictionPolicy] = {
    "lru": LeastRecentlyUsed(),
    "lfu": LeastFrequentlyUsed(),
    "depth": DepthAware(),
}
