"""How much each block is used: a column over the directory's block rows, for the policies that ask for it.

A use counts half as much HALF_LIFE_S later. Nothing is ever aged for that: later uses weigh more instead (forward
decay; Cormode et al., 2009), and all is scaled down before the weights grow too large. What leaves the directory is
remembered in a table of fixed size, so a block that comes back is as hot as it was; two that fall into one place of
it are taken for the hotter one. A block is at least as hot as the blocks that follow it in its prefix.
"""

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from daemons.core.ids import BlockHash

_GROW_ROWS = 1024

HALF_LIFE_S = 300.0
_MAX_HALF_LIVES = 500
"""Weights up to 2**500: a float64 has room for twice as many, and for sums of them."""
_MEMORY_BITS = 18
_MEMORY_MASK = (1 << _MEMORY_BITS) - 1


class HeatTable:
    """Indexed by block row. Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self.heat = array("d")
        self._origin_s: float | None = None
        self._memory = (array("d", bytes(8 << _MEMORY_BITS)), array("d", bytes(8 << _MEMORY_BITS)))

    def add(self, row: int, block_hash: BlockHash, *, now_s: float) -> None:
        """A new or reused row: as hot as it was when it left, and used once."""
        if row >= len(self.heat):
            self.heat.extend([0.0] * (row + _GROW_ROWS - len(self.heat)))
        weight = self._weight(now_s)
        one, other = self._memory
        first, second = _places(block_hash)
        self.heat[row] = min(one[first], other[second]) + weight

    def remove(self, row: int, block_hash: BlockHash) -> None:
        """Before the row is reused."""
        one, other = self._memory
        first, second = _places(block_hash)
        one[first] = max(one[first], self.heat[row])
        other[second] = max(other[second], self.heat[row])

    def touch(self, rows: Sequence[int], *, now_s: float) -> None:
        """One use of each; rows in the order of their prefix, for the later must not be hotter."""
        heat, weight, floor = self.heat, self._weight(now_s), 0.0
        for row in reversed(rows):
            value = heat[row] + weight
            if value > floor:  # noqa: PLR1730 - max() costs three times as much, per block
                floor = value
            heat[row] = floor

    def raise_to(self, row: int, follower: int) -> bool:
        """At least as hot as the block that follows it; False when it already was."""
        if self.heat[row] >= self.heat[follower]:
            return False
        self.heat[row] = self.heat[follower]
        return True

    def column(self) -> NDArray[np.float64]:
        """A view; drop it before the next `add`, for an array that is looked at cannot grow."""
        return np.frombuffer(self.heat, np.float64) if self.heat else np.empty(0, np.float64)

    def _weight(self, now_s: float) -> float:
        if self._origin_s is None:
            self._origin_s = now_s
        half_lives = (now_s - self._origin_s) / HALF_LIFE_S
        if half_lives > _MAX_HALF_LIVES:
            for column in (self.heat, *self._memory):
                values = np.frombuffer(column, np.float64)
                values *= 2.0 ** -min(half_lives, 2 * _MAX_HALF_LIVES)
            self._origin_s = now_s
            return 1.0
        return float(2.0**half_lives)


def _places(block_hash: BlockHash) -> tuple[int, int]:
    """Two that have nothing to do with each other, also where hashes are small numbers, as in a simulation."""
    number = int.from_bytes(block_hash[-8:], "big") * 0x9E3779B97F4A7C15
    return (number >> 40) & _MEMORY_MASK, (number >> 20) & _MEMORY_MASK
