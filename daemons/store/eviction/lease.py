"""When each block was last used and until when it is leased: two columns over the directory's block rows.

A lease is a promise not to choose the block as a victim before a time. It is a courtesy: readers verify checksums.
"""

import numpy as np

from daemons.store.directory.columns import Column, Rows


class LeaseTable:
    """Indexed by block row. Times are seconds of the caller's clock; they only grow."""

    def __init__(self) -> None:
        self.used_s = Column[np.float64](np.float64)
        self.until_s = Column[np.float64](np.float64)

    def add_all(self, rows: Rows, *, now_s: float) -> None:
        """New or reused rows: used now, not leased."""
        num_rows = int(rows.max(initial=-1)) + 1
        self.used_s.reach(num_rows)
        self.until_s.reach(num_rows)
        self.used_s.values[rows] = now_s
        self.until_s.values[rows] = 0.0

    def touch(self, rows: Rows, *, now_s: float, lease_s: float) -> None:
        """Used now, and leased for `lease_s` unless a longer lease is held."""
        until_s = self.until_s.values
        self.used_s.values[rows] = now_s
        until_s[rows] = np.maximum(until_s[rows], now_s + lease_s)

    def raise_all(self, rows: Rows, *, used_s: float) -> None:
        """At least as recent as given."""
        used = self.used_s.values
        used[rows] = np.maximum(used[rows], used_s)

    def has(self, row: int, *, used_s: float, until_s: float) -> bool:
        """Whether it is at least as recent and as long leased as given."""
        return self.used_s.values.item(row) >= used_s and self.until_s.values.item(row) >= until_s

    def extend(self, by_s: float, *, now_s: float) -> None:
        """Of those that were held `by_s` ago: nobody could renew them since."""
        until_s = self.until_s.values
        until_s[until_s > now_s - by_s] += by_s

    def is_leased(self, row: int, *, now_s: float) -> bool:
        return self.until_s.values.item(row) > now_s
