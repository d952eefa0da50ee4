"""Victims that were chosen and not named yet, of one slot: looking at all columns again for each report costs too much.

What is taken is as good as when it was chosen: whatever was used, leased, named or freed since is passed over.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from daemons.store.lease import LeaseTable
from daemons.store.replica_table import ReplicaTable

MAX_AGE_S = 1.0
"""A later choice may be another one."""


@dataclass(slots=True)
class VictimQueue:
    """Replica rows, first to go first. `num_pins` is `PinTable.num_changes` when they were chosen."""

    chosen_s: float = 0.0
    num_pins: int = 0
    rows: deque[int] = field(default_factory=deque)

    def keep(self, rows: Sequence[int], *, now_s: float, num_pins: int) -> None:
        self.rows = deque(rows)
        self.chosen_s, self.num_pins = now_s, num_pins

    def is_good(self, *, now_s: float, num_pins: int) -> bool:
        return bool(self.rows) and num_pins == self.num_pins and now_s < self.chosen_s + MAX_AGE_S

    def take(
        self,
        slot: int,
        tables: tuple[ReplicaTable, LeaseTable],
        num_bytes: int,
        *,
        now_s: float,
        max_blocks: int,
    ) -> list[int]:
        """Enough for `num_bytes` if there are so many, at most `max_blocks`."""
        replicas, leases = tables
        rows, slot_of, block_of, length = self.rows, replicas.slot, replicas.block, replicas.length
        named_until_s, used_s, until_s = replicas.named_until_s, leases.used_s, leases.until_s
        taken: list[int] = []
        while rows and num_bytes > 0 and len(taken) < max_blocks:
            row = rows.popleft()
            block = block_of[row]
            # A row that was freed and is in use again has been used since.
            if (
                slot_of[row] == slot
                and named_until_s[row] <= now_s
                and used_s[block] < self.chosen_s
                and until_s[block] <= now_s
            ):
                taken.append(row)
                num_bytes -= length[row]
        return taken
