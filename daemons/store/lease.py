"""When each block was last used and until when it is leased: two columns over the directory's block rows.

A lease is a promise not to choose the block as a victim before a time. It is a courtesy: readers verify checksums.
"""

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from daemons.store.block_table import GROW_ROWS


class LeaseTable:
    """Indexed by block row. Times are seconds of the caller's clock; they only grow."""

    def __init__(self) -> None:
        self.used_s = array("d")
        self.until_s = array("d")

    def add(self, row: int, *, now_s: float) -> None:
        self.add_all([row], now_s=now_s)

    def add_all(self, rows: Sequence[int], *, now_s: float) -> None:
        """New or reused rows: used now, not leased."""
        used_s, until_s = self.used_s, self.until_s
        last = max(rows, default=0)
        if last >= len(used_s):
            num_new = last + GROW_ROWS - len(used_s)
            used_s.extend([0.0] * num_new)
            until_s.extend([0.0] * num_new)
        for row in rows:
            used_s[row] = now_s
            until_s[row] = 0.0

    def touch(self, rows: Iterable[int], *, now_s: float, lease_s: float) -> None:
        """Used now, and leased for `lease_s` unless a longer lease is held."""
        used_s, until_s = self.used_s, self.until_s
        end_s = now_s + lease_s
        for row in rows:
            used_s[row] = now_s
            if until_s[row] < end_s:  # noqa: PLR1730 - max() costs three times as much, per block
                until_s[row] = end_s

    def raise_to(self, row: int, *, used_s: float, until_s: float) -> bool:
        """At least as recent and as long leased as given; False when it already was."""
        changed = False
        if self.used_s[row] < used_s:
            self.used_s[row] = used_s
            changed = True
        if self.until_s[row] < until_s:
            self.until_s[row] = until_s
            changed = True
        return changed

    def is_leased(self, row: int, *, now_s: float) -> bool:
        return self.until_s[row] > now_s

    def used_column(self) -> NDArray[np.float64]:
        """A view; drop it before the next `add`, for an array that is looked at cannot grow."""
        return np.frombuffer(self.used_s, np.float64) if self.used_s else np.empty(0, np.float64)

    def until_column(self) -> NDArray[np.float64]:
        """A view, as `used_column`."""
        return np.frombuffer(self.until_s, np.float64) if self.until_s else np.empty(0, np.float64)
