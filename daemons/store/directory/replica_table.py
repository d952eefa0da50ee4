"""The directory's columns of replicas: where each copy is. The copies of one block are a linked list of rows."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from daemons.core.ids import HostId
from daemons.protocol.packed import LOCATION, LOCATION_BYTES
from daemons.store.directory.columns import NO_ROW, Column, RowPool, Rows
from daemons.store.directory.slot_table import UNREADABLE, SlotTable

RECORD = np.dtype(f"V{LOCATION_BYTES}")
_FEW: Final = 8
"""Lists of so few blocks are walked one by one: operations on columns cost more."""


class ReplicaTable:
    """`slot` is NO_ROW in a free row. `named_until_s`: named as a victim, so not offered to readers until then."""

    def __init__(self, slots: SlotTable) -> None:
        self.slots = slots
        self.records = Column[np.void](RECORD)
        """As replies carry them; `common` is the slot. Taken and put whole: a tenth of what it costs by field."""
        self.length = Column[np.uint64](np.uint64)
        """Also in the records, but eviction looks at all of them."""
        self.slot = Column[np.int32](np.int32, NO_ROW)
        self.block = Column[np.int32](np.int32)
        self.next = Column[np.int32](np.int32, NO_ROW)
        self.named_until_s = Column[np.float64](np.float64)
        self.last_named_until_s = 0.0
        """No row is named as a victim for longer."""
        self.num_rows = 0
        self._pool = RowPool()

    def name_victims(self, rows: Rows | int, until_s: float) -> None:
        self.named_until_s.values[rows] = until_s
        self.last_named_until_s = max(self.last_named_until_s, until_s)

    def is_all_readable(self, *, now_s: float) -> bool:
        """Every replica there is can be read: no node is in doubt, no victim is named."""
        return self.slots.are_all_up and now_s >= self.last_named_until_s

    def field(self, name: str) -> NDArray[np.uint64]:
        """A column of the records, a view: of LOCATION's names."""
        found: NDArray[np.uint64] = self.records.values.view(LOCATION)[name]
        return found

    def number(self, name: str, row: int) -> int:
        """One number of one record."""
        return int(self.field(name)[row])

    def add_all(self, slot: int, blocks: Rows, locations: NDArray[np.void]) -> Rows:
        """One row for each block, in no list yet."""
        rows = self._pool.take(len(blocks))
        for column in (self.records, self.length, self.slot, self.block):
            column.reach(self._pool.num_used)
        for other in (self.next, self.named_until_s):
            other.reach(self._pool.num_used)
        records = locations.copy()
        records["common"] = slot
        self.records.values[rows] = records.view(RECORD)
        self.length.values[rows] = records["length"]
        self.slot.values[rows] = slot
        self.block.values[rows] = blocks
        self.next.values[rows] = NO_ROW
        self.named_until_s.values[rows] = 0.0
        self.slots.count(slot, len(rows), int(locations["length"].sum()))
        self.num_rows += len(rows)
        return rows

    def replace(self, row: int, location: NDArray[np.void]) -> None:
        """The node sealed the block again, elsewhere in its segment; a record of one row."""
        slot = int(self.slot.values[row])
        record = location.copy()
        record["common"] = slot
        length = record["length"].item()
        self.slots.count(slot, 0, length - self.length.values.item(row))
        self.length.values[row] = length
        self.records.values[row : row + 1] = record.view(RECORD)
        self.named_until_s.values[row] = 0.0

    def remove_all(self, slot: int, rows: Rows) -> None:
        """Free rows of one slot that are out of their blocks' lists; closes a dropped slot with its last row."""
        self.slot.values[rows] = NO_ROW
        self.num_rows -= len(rows)
        self._pool.give(rows)
        self.slots.count(slot, -len(rows), -int(self.length.values[rows].sum()))

    def chain(self, head: int) -> list[int]:
        """A list of rows, from its first one on."""
        found, following = [], self.next.values
        while head != NO_ROW:
            found.append(head)
            head = following.item(head)
        return found

    def ranks(self, rows: Rows, now_s: float, near: HostId | None = None) -> NDArray[np.intp]:
        """How much readers like each: see SlotTable. NO_ROW may not be among them."""
        slots = self.slot.values[rows]
        ranks = self.slots.rank_near(near)[slots]
        if now_s >= self.last_named_until_s:
            return ranks
        is_named = self.named_until_s.values[rows] > now_s
        if np.count_nonzero(is_named):
            ranks = np.where(is_named, self.slots.named_rank[slots], ranks)
        return ranks

    def best(self, heads: Rows, now_s: float, near: HostId | None, turn: int) -> Rows:
        """Of each of these lists the best replica to read; NO_ROW where none can be.

        Equal ones take turns, so that each serves its share of a hot block's readers.
        """
        ranks = self.ranks(heads, now_s, near)
        following = self.next.values[heads]
        is_longer = following != NO_ROW
        if np.count_nonzero(is_longer):
            best = heads.copy()
            at = np.flatnonzero(is_longer)
            level = following[at].astype(np.intp)
            num_slots = len(self.slots)
            order = ranks * num_slots + (self.slot.values[heads] + turn) % num_slots
            while len(at) > _FEW:
                other = self.ranks(level, now_s, near)
                other_order = other * num_slots + (self.slot.values[level] + turn) % num_slots
                is_better = other_order > order[at]
                best[at[is_better]] = level[is_better]
                ranks[at[is_better]] = other[is_better]
                order[at[is_better]] = other_order[is_better]
                level = self.next.values[level].astype(np.intp)
                at, level = at[level != NO_ROW], level[level != NO_ROW]
            rank_of, slot_of = self.slots.rank_near(near), self.slot.values
            is_any_named, following = now_s < self.last_named_until_s, self.next.values
            for index, replica in zip(at.tolist(), level.tolist(), strict=True):
                best_order = order.item(index)
                while replica != NO_ROW:
                    slot = slot_of.item(replica)
                    is_named = is_any_named and self.named_until_s.values.item(replica) > now_s
                    rank = (self.slots.named_rank if is_named else rank_of).item(slot)
                    in_order = rank * num_slots + (slot + turn) % num_slots
                    if in_order > best_order:
                        best[index], ranks[index], best_order = replica, rank, in_order
                    replica = following.item(replica)
            heads = best
        if np.count_nonzero(ranks == UNREADABLE):
            return np.where(ranks > UNREADABLE, heads, NO_ROW)
        return heads
