"""Victims that were chosen and not named yet, of one slot: looking at all columns again for each report costs too much.

What is taken is as good as when it was chosen: whatever was used, leased, named or freed since is passed over.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from daemons.store.directory.columns import Rows
from daemons.store.directory.replica_table import ReplicaTable
from daemons.store.eviction.lease import LeaseTable

MAX_AGE_S = 5.0
"""A later choice may be another one: of what was not used since, only leases that ended and heat that faded differ."""

_WINDOW = 256
"""Rows looked at together: a report seldom takes more."""


@dataclass(slots=True)
class VictimQueue:
    """Replica rows, first to go first. `num_pins` is `PinTable.num_changes` when they were chosen."""

    chosen_s: float = 0.0
    num_pins: int = 0
    rows: Rows = field(default_factory=lambda: np.empty(0, np.intp))

    def keep(self, rows: Rows, *, now_s: float, num_pins: int) -> None:
        self.rows = rows
        self.chosen_s, self.num_pins = now_s, num_pins

    def is_good(self, *, now_s: float, num_pins: int) -> bool:
        is_young = num_pins == self.num_pins and now_s < self.chosen_s + MAX_AGE_S
        return len(self.rows) > 0 and is_young

    def take(
        self,
        slot: int,
        tables: tuple[ReplicaTable, LeaseTable],
        num_bytes: int,
        *,
        now_s: float,
        max_blocks: int,
    ) -> Rows:
        """Enough for `num_bytes` if there are so many, at most `max_blocks`."""
        taken: list[Rows] = []
        while len(self.rows) and num_bytes > 0 and max_blocks > 0:
            window = self.rows[:_WINDOW]
            good = np.flatnonzero(self._may_go(window, slot, tables, now_s))[:max_blocks]
            freed = np.cumsum(tables[0].length.values[window[good]])
            count = int(np.searchsorted(freed, num_bytes)) + 1
            is_enough = count <= len(good)
            good = good[:count]
            # What is passed over is not looked at again.
            is_full = is_enough or len(good) == max_blocks
            self.rows = self.rows[int(good[-1]) + 1 if is_full else len(window) :]
            taken.append(window[good])
            max_blocks -= len(good)
            num_bytes -= int(freed[len(good) - 1]) if len(good) else 0
        return np.concatenate(taken) if taken else np.empty(0, np.intp)

    def _may_go(
        self, rows: Rows, slot: int, tables: tuple[ReplicaTable, LeaseTable], now_s: float
    ) -> NDArray[np.bool_]:
        replicas, leases = tables
        blocks = replicas.block.values[rows]
        may_go: NDArray[np.bool_] = replicas.slot.values[rows] == slot
        may_go &= replicas.named_until_s.values[rows] <= now_s
        # A row that was freed and is in use again has been used since.
        may_go &= leases.used_s.values[blocks] < self.chosen_s
        may_go &= leases.until_s.values[blocks] <= now_s
        return may_go
