"""The directory's columns of replicas: where each copy is. The copies of one block are a linked list of rows.

A tier of one life of a node is a slot. Dropping a node marks its slots, O(1); its rows are cleaned later, bit by bit,
and a slot's number is used again only when none is left.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from daemons.core.ids import HostId, NodeId
from daemons.protocol.block import SealedBlock, Tier
from daemons.protocol.segment import SEGMENT_SPAN_BITS, RegionRef, place_of
from daemons.store.block_table import GROW_ROWS, NO_ROW, take_rows

Place = tuple[NodeId, Tier]
TIERS: Final[tuple[Tier, ...]] = ("device", "dram", "ssd", "object")
"""The faster first."""

RANKS: Final = 2 * len(TIERS)
"""A replica of a suspect node comes after all others."""


@dataclass(slots=True)
class Slot:
    """`pending_bytes` were named as victims and not freed yet, until `pending_until_s`."""

    node: NodeId
    host_id: HostId
    region: RegionRef
    control: str = ""
    tier: Tier = "dram"
    is_dropped: bool = False
    is_kept: bool = False
    """Dropped, but not to be swept: its replicas count until the node is back or given up."""
    is_suspect: bool = False
    has_lower: bool = False
    """Victims are written to a lower tier first, and can be read meanwhile."""
    num_replicas: int = 0
    num_bytes: int = 0
    pending_bytes: int = 0
    pending_until_s: float = 0.0
    regions: dict[int, RegionRef] = field(default_factory=dict)
    """Of the node's segments in DRAM beside the first, by number."""
    rank: int = 0
    """Of its tier, higher is better, at least 2; leaves room for one point more."""

    def __post_init__(self) -> None:
        self.rank = RANKS - 2 * TIERS.index(self.tier)

    @property
    def place(self) -> Place:
        return self.node, self.tier

    def find(self, told: int) -> tuple[RegionRef, int]:
        """(region, offset there) of a place as the node told it. Of a segment that is not known whoever reads there
        finds other bytes, and verifies.
        """
        if told >> SEGMENT_SPAN_BITS == 0:
            return self.region, told
        number, offset = place_of(told)
        return self.regions.get(number, self.region), offset


class ReplicaTable:
    """`slot` is NO_ROW in a free row. `named_until_s`: named as a victim, so not offered to readers until then."""

    def __init__(self) -> None:
        self.slot = array("i")
        self.block = array("i")
        self.next = array("i")
        self.offset = array("Q")
        self.length = array("Q")
        self.trailer_bytes = array("I")
        self.version = array("Q")
        self.seal_checksum = array("Q")
        self.num_layers = array("I")
        self.named_until_s = array("d")
        self.last_named_until_s = 0.0
        """No row is named as a victim for longer."""
        self.slots: list[Slot | None] = []
        self.num_rows = 0
        self._num_used = 0
        """Rows that were ever in use; those above are blank."""
        self._free = array("i")

    def name_victim(self, row: int, until_s: float) -> None:
        self.named_until_s[row] = until_s
        self.last_named_until_s = max(self.last_named_until_s, until_s)

    def is_all_readable(self, *, now_s: float) -> bool:
        """Every replica there is can be read: no node is in doubt, no victim is named. Costs a look at each slot."""
        return now_s >= self.last_named_until_s and not any(
            slot is not None and (slot.is_dropped or slot.is_suspect) for slot in self.slots
        )

    def open_slot(self, opened: Slot) -> int:
        for number, held in enumerate(self.slots):
            if held is None:
                self.slots[number] = opened
                return number
        self.slots.append(opened)
        return len(self.slots) - 1

    def slot_of(self, row: int) -> Slot:
        held = self.slots[self.slot[row]]
        assert held is not None, "a replica's slot is open"
        return held

    def add(self, slot: int, block: int, sealed: SealedBlock) -> int:
        [row] = self.add_all(slot, [block], [sealed])
        return row

    def add_all(self, slot: int, blocks: Sequence[int], sealed: Sequence[SealedBlock]) -> list[int]:
        """One row for each block, in no list yet. Flat, as `BlockTable.add_all`."""
        rows = take_rows(len(blocks), self._free, self._num_used)
        self._num_used = max(self._num_used, max(rows, default=-1) + 1)
        while self._num_used > len(self.slot):
            self._grow()
        slot_of, block_of, following = self.slot, self.block, self.next
        offset, length, trailer_bytes = self.offset, self.length, self.trailer_bytes
        version, checksum, num_layers = self.version, self.seal_checksum, self.num_layers
        named_until_s = self.named_until_s
        num_bytes = 0
        for row, block, each in zip(rows, blocks, sealed, strict=True):
            slot_of[row] = slot
            block_of[row] = block
            following[row] = NO_ROW
            num_bytes += each.length
            length[row] = each.length
            offset[row] = each.offset
            trailer_bytes[row] = each.trailer_bytes
            version[row] = each.version
            checksum[row] = each.seal_checksum
            num_layers[row] = each.num_layers
            named_until_s[row] = 0.0
        held = self.slots[slot]
        assert held is not None, "a slot that is reported to is open"
        held.num_replicas += len(rows)
        held.num_bytes += num_bytes
        self.num_rows += len(rows)
        return rows

    def replace(self, row: int, sealed: SealedBlock) -> None:
        """The node sealed the block again, elsewhere in its segment."""
        self.slot_of(row).num_bytes += sealed.length - self.length[row]
        self.length[row] = sealed.length
        self.offset[row] = sealed.offset
        self.trailer_bytes[row] = sealed.trailer_bytes
        self.version[row] = sealed.version
        self.seal_checksum[row] = sealed.seal_checksum
        self.num_layers[row] = sealed.num_layers
        self.named_until_s[row] = 0.0

    def remove(self, row: int) -> None:
        """Free a row that is out of its block's list; closes a dropped slot with its last row."""
        self.remove_all(self.slot[row], [row])

    def remove_all(self, slot: int, rows: Sequence[int]) -> None:
        """The same for rows of one slot."""
        held = self.slots[slot]
        assert held is not None, "a replica's slot is open"
        slot_of, length = self.slot, self.length
        num_bytes = 0
        for row in rows:
            slot_of[row] = NO_ROW
            num_bytes += length[row]
        self.num_rows -= len(rows)
        self._free.extend(rows)
        held.num_replicas -= len(rows)
        held.num_bytes -= num_bytes
        if held.is_dropped and held.num_replicas == 0:
            self.slots[slot] = None

    def slot_column(self) -> NDArray[np.int32]:
        """A view; drop it before the next `add`, for an array that is looked at cannot grow."""
        return np.frombuffer(self.slot, np.int32) if self.slot else np.empty(0, np.int32)

    def is_dropped_by_slot(self) -> NDArray[np.bool_]:
        return np.array([held is None or held.is_dropped for held in self.slots], bool)

    def is_swept_by_slot(self) -> NDArray[np.bool_]:
        return np.array(
            [held is None or (held.is_dropped and not held.is_kept) for held in self.slots], bool
        )

    def _grow(self) -> None:
        self.slot.extend([NO_ROW] * GROW_ROWS)
        for column in (self.block, self.next, self.trailer_bytes, self.num_layers):
            column.extend([0] * GROW_ROWS)
        for wide in (self.offset, self.length, self.version, self.seal_checksum):
            wide.extend([0] * GROW_ROWS)
        self.named_until_s.extend([0.0] * GROW_ROWS)
