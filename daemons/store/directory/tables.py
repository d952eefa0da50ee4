"""The tables of one directory, and what all of its parts do with them.

Invariant: a block is at least as recent, as long leased and, where heat is kept, as hot as the block that follows it in
its prefix, so evicting in these orders never cuts a prefix that is still in use.
"""

import struct
from dataclasses import dataclass, field
from typing import Final

from daemons.core.errors import NotFound
from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.block import Tier
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.store.directory.block_table import BlockTable
from daemons.store.directory.columns import NO_ROW, Rows
from daemons.store.directory.replica_table import ReplicaTable
from daemons.store.directory.slot_table import Slot, SlotTable
from daemons.store.eviction.heat import HeatTable
from daemons.store.eviction.lease import LeaseTable
from daemons.store.eviction.pins import PinTable

_HASH: Final = struct.Struct(f"{HASH_BYTES}s")
RENAME_AFTER_S = 1.0
"""A victim that was named is not named again, nor offered to readers, before this has passed."""


@dataclass(slots=True)
class Tables:
    """All that the directory consists of."""

    heat: HeatTable | None
    """Where the policy needs it."""
    slots: SlotTable = field(default_factory=SlotTable)
    blocks: BlockTable = field(default_factory=BlockTable)
    leases: LeaseTable = field(default_factory=LeaseTable)
    pins: PinTable = field(default_factory=PinTable)
    replicas: ReplicaTable = field(init=False)
    away: dict[BlockHash, tuple[NodeId, ...]] = field(default_factory=dict)
    """Objects of which no replica is left, and the nodes that went with one: each of them may bring it back."""
    left: dict[BlockHash, tuple[NodeId, ...]] = field(default_factory=dict)
    """Of objects that others still have: the nodes that went with a replica and have not said what they hold since."""
    announced: set[NodeId] = field(default_factory=set)
    """Nodes that have said all they hold: what went with an earlier life and is not there does not come back."""

    def __post_init__(self) -> None:
        self.replicas = ReplicaTable(self.slots)

    @property
    def has_spares(self) -> bool:
        """False where no block has more than one replica, so that nobody needs to look for others."""
        return self.replicas.num_rows > len(self.blocks.row_by_hash)

    def number_of(self, node: NodeId, tier: Tier) -> int:
        """Raises NotFound."""
        number = self.slots.by_place.get((node, tier))
        if number is None:
            raise NotFound(f"node {node} lends no {tier} to this pool; join first")
        return number

    def chain(self, row: int) -> list[int]:
        """All replicas of a block."""
        return self.replicas.chain(self.blocks.head.values.item(row))

    def chain_of(self, block_hash: BlockHash) -> list[int]:
        row = self.blocks.row_by_hash.get(block_hash)
        return [] if row is None else self.chain(row)

    def slot_of(self, replica: int) -> Slot:
        return self.slots[self.replicas.slot.values.item(replica)]

    def on_slot(self, row: int, number: int) -> int:
        """The block's replica there, or NO_ROW."""
        slot_of, following = self.replicas.slot.values, self.replicas.next.values
        replica = self.blocks.head.values.item(row)
        while replica != NO_ROW and slot_of.item(replica) != number:
            replica = following.item(replica)
        return replica

    def replica_on(self, number: int, block_hash: BlockHash) -> int:
        row = self.blocks.row_by_hash.get(block_hash)
        return NO_ROW if row is None else self.on_slot(row, number)

    def touch_parents(self, row: int, now_s: float, until_s: float) -> None:
        """Ends at the first ancestor that needs nothing: those above it were touched with it."""
        find, parents = self.blocks.row_by_hash.get, self.blocks.parents.buffer
        first = find(_HASH.unpack_from(parents, row * HASH_BYTES)[0])
        if first is None or first == row:
            return  # the beginning, or an object, which is its own parent
        if self.heat is None and self.leases.has(first, used_s=now_s, until_s=until_s):
            return  # as mostly: the part of the prefix before this one was asked for just now
        # Flat, and on views that are cheaper to ask than numpy: reports that go on with a prefix walk it up to its
        # beginning. They are let go at once: a column that is looked at cannot grow in place.
        with (
            memoryview(self.leases.used_s.buffer).cast("B").cast("d") as used,
            memoryview(self.leases.until_s.buffer).cast("B").cast("d") as until,
        ):
            while (parent := find(_HASH.unpack_from(parents, row * HASH_BYTES)[0])) is not None:
                is_raised = used[parent] < now_s
                if is_raised:
                    used[parent] = now_s
                if until[parent] < until_s:
                    until[parent] = until_s
                    is_raised = True
                if self.heat is not None:
                    is_raised |= self.heat.raise_to(parent, row)
                if not is_raised:
                    return
                row = parent

    def use(self, rows: Rows, *, now_s: float, lease_s: float) -> None:
        """Blocks that were asked for: the deeper after the ones before it."""
        self.leases.touch(rows, now_s=now_s, lease_s=lease_s)
        if self.heat is not None:
            for row in rows.tolist():
                self.heat.touch([row], now_s=now_s)
        for row in self.blocks.starts(rows).tolist():
            self.touch_parents(row, now_s, now_s + lease_s)
