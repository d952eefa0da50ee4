"""What nodes report enters and leaves the tables, a whole report at a time; what nodes that are gone held, in steps."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.block import MAX_REPLICAS, Tier
from daemons.protocol.packed import SealedBlocks
from daemons.store.directory.columns import NO_ROW, Rows
from daemons.store.directory.report_check import check_sealed
from daemons.store.directory.slot_table import Place
from daemons.store.directory.tables import Tables

MAX_AWAY: Final = 100_000
FRESH_MS: Final = 1000
"""A seal that is older is no use of the block."""

_LOOK_ROWS: Final = 64
"""Rows looked at for each that may be swept."""


class Recording:
    """Of one directory."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._sweep_at = 0

    def record_sealed(
        self, node: NodeId, sealed: SealedBlocks, *, now_s: float, tier: Tier = "dram"
    ) -> SealedBlocks:
        """All or nothing: ProtocolError for a malformed record. Returns those that are new in this tier of the node."""
        check_sealed(sealed)
        return self.record_checked(node, sealed, now_s=now_s, tier=tier)

    def record_checked(
        self, node: NodeId, sealed: SealedBlocks, *, now_s: float, tier: Tier = "dram"
    ) -> SealedBlocks:
        """The same of what `check_sealed` let pass."""
        number = self._tables.number_of(node, tier)
        known, hashes = self._tables.blocks.row_by_hash, sealed.hashes()
        if self._record_new(number, sealed, hashes, now_s):
            return sealed
        fresh: dict[BlockHash, int] = {}
        for index, key in enumerate(hashes):
            if key not in known:
                fresh.setdefault(key, index)
        first = list(fresh.values())
        if first:
            is_recorded = self._record_new(number, sealed.part(first), list(fresh), now_s)
            assert is_recorded, "each of them is new, and there once"
        is_first = set(first)
        again = [index for index in range(len(hashes)) if index not in is_first]
        return sealed.part(first + self._record_known(number, sealed, again, now_s))

    def record_freed(
        self, node: NodeId, hashes: Sequence[BlockHash], *, tier: Tier = "dram"
    ) -> list[BlockHash]:
        """Returns those that this tier of the node had."""
        tables = self._tables
        number = tables.number_of(node, tier)
        if not hashes:
            return []
        freed = list(hashes)
        rows = tables.blocks.take_all(freed)
        if np.count_nonzero(rows == NO_ROW):
            freed = [key for key, row in zip(freed, rows.tolist(), strict=True) if row != NO_ROW]
            rows = rows[rows != NO_ROW]
        if not freed:
            return []
        heads = tables.blocks.head.values[rows]
        # Most blocks have this replica only, and go with it.
        is_alone = tables.replicas.slot.values[heads] == number
        is_alone &= tables.replicas.next.values[heads] == NO_ROW
        if np.count_nonzero(is_alone) == len(freed):
            self._free_alone(number, freed, rows)
            return freed
        alone = [freed[index] for index in np.flatnonzero(is_alone).tolist()]
        others = [freed[index] for index in np.flatnonzero(~is_alone).tolist()]
        tables.blocks.put_back(others, rows[~is_alone])
        self._free_alone(number, alone, rows[is_alone])
        gone = set(alone)
        return [key for key in freed if key in gone or self._free_one(number, key)]

    def sweep(self, max_rows: int) -> dict[Place, list[BlockHash]]:
        """Clean up to `max_rows` rows of dropped nodes; returns the replicas that are gone with them."""
        tables = self._tables
        gone: dict[Place, list[BlockHash]] = {}
        for number, slot in list(tables.slots):
            if not slot.is_swept or not max_rows:
                continue
            rows = self._rows_on(number, max_rows)
            max_rows -= len(rows)
            blocks = tables.replicas.block.values[rows]
            is_alone = tables.blocks.head.values[blocks] == rows
            is_alone &= tables.replicas.next.values[rows] == NO_ROW
            alone = blocks[is_alone].astype(np.intp)
            hashes = tables.blocks.hashes_of(alone)
            self._keep_away_names(alone.tolist(), slot.node)
            tables.blocks.take_all(hashes)
            self._free_alone(number, hashes, alone)
            for row, block in zip(
                rows[~is_alone].tolist(), blocks[~is_alone].tolist(), strict=True
            ):
                key = tables.blocks.hash_of(block)
                self._unlink(block, row)
                if block in tables.blocks.names and slot.node not in tables.announced:
                    _keep(tables.left, key, (slot.node,))
                living = tables.slots.by_place.get(slot.place)
                if living is None or tables.replica_on(living, key) == NO_ROW:
                    hashes.append(key)
            if hashes:
                gone.setdefault(slot.place, []).extend(hashes)
        return gone

    # -- inside --------------------------------------------------------------------------------------------------

    def _record_new(
        self, number: int, sealed: SealedBlocks, hashes: Sequence[BlockHash], now_s: float
    ) -> bool:
        """Blocks that were nowhere, each once; False, and nothing is changed, where they are not all such."""
        tables, columns = self._tables, sealed.columns()
        rows = tables.blocks.add_all(sealed, hashes, now_s - columns["age_ms"] / 1000)
        if rows is None:
            return False
        tables.leases.add_all(rows, now_s=now_s)
        replicas = tables.replicas.add_all(number, rows, columns["location"])
        tables.blocks.head.values[rows] = replicas
        tables.blocks.want_all(rows, np.minimum(columns["wanted"], MAX_REPLICAS))
        tables.pins.blocks_added(hashes)
        if tables.away:
            for key in hashes:
                tables.away.pop(key, None)
        if tables.heat is not None:
            for row, key in zip(rows.tolist(), hashes, strict=True):
                tables.heat.add(row, key, now_s=now_s)
        starts = rows if tables.heat is not None else rows[sealed.starts()]
        for row in starts.tolist():
            tables.touch_parents(row, now_s, 0.0)
        return True

    def _record_known(
        self, number: int, sealed: SealedBlocks, indexes: Sequence[int], now_s: float
    ) -> list[int]:
        """Of blocks that are somewhere; returns those that are new in this slot."""
        tables, columns = self._tables, sealed.columns()
        locations, wanted = columns["location"], columns["wanted"]
        row_by_hash = tables.blocks.row_by_hash
        hashes = locations["hash"][indexes].tolist()
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for index, key, count in zip(indexes, hashes, wanted[indexes].tolist(), strict=True):
            row = row_by_hash[key]
            if count and not tables.blocks.wanted.values[row]:
                # What was asked for here is newer than what a node remembers.
                tables.blocks.want(row, min(count, MAX_REPLICAS))
            if index in sealed.named:
                tables.blocks.name(row, sealed.named[index])
            held = tables.on_slot(row, number)
            if held != NO_ROW:
                tables.replicas.replace(held, locations[index : index + 1])
                continue
            first.setdefault(row, index)
            last[row] = index
        new = list(first.values())
        if new:
            rows = np.array(list(first), np.intp)
            if tables.slots[number].tier == "dram":
                # What is older is a copy, announced again, or moved down: no use of it.
                self._touch(rows[columns["age_ms"][new] < FRESH_MS], now_s)
            self._add_replicas(number, rows, locations[list(last.values())])
        return new

    def _touch(self, rows: Rows, now_s: float) -> None:
        """Blocks that were computed or copied just now, and all before them."""
        tables = self._tables
        tables.leases.raise_all(rows, used_s=now_s)
        # The block before one of these rows may be the row before it, which was touched just now; its heat was not.
        for row in (tables.blocks.starts(rows) if tables.heat is None else rows).tolist():
            tables.touch_parents(row, now_s, 0.0)

    def _add_replicas(self, number: int, rows: Rows, locations: NDArray[np.void]) -> None:
        """Of blocks that have replicas elsewhere, each once."""
        tables = self._tables
        if tables.away:
            for row in rows.tolist():
                tables.away.pop(tables.blocks.hash_of(row), None)
        tables.pins.replicas_added(rows)
        replicas, heads = tables.replicas.add_all(number, rows, locations), tables.blocks.head
        tables.replicas.next.values[replicas] = heads.values[rows]
        heads.values[rows] = replicas

    def _free_one(self, number: int, block_hash: BlockHash) -> bool:
        tables = self._tables
        row = tables.blocks.row_by_hash.get(block_hash)
        replica = NO_ROW if row is None else tables.on_slot(row, number)
        if row is None or replica == NO_ROW:
            return False
        if tables.replicas.named_until_s.values[replica] > 0:
            self._was_pending(number, tables.replicas.length.values.item(replica))
        self._unlink(row, replica)
        return True

    def _was_pending(self, number: int, num_bytes: int) -> None:
        slot = self._tables.slots[number]
        slot.pending_bytes = max(0, slot.pending_bytes - num_bytes)

    def _free_alone(self, number: int, hashes: Sequence[BlockHash], rows: Rows) -> None:
        """Blocks that go with their only replica, which is in this slot; they are taken out already."""
        if not len(rows):
            return
        tables = self._tables
        heads = tables.blocks.head.values[rows].astype(np.intp)
        is_named = tables.replicas.named_until_s.values[heads] > 0
        if np.count_nonzero(is_named):
            self._was_pending(number, int(tables.replicas.length.values[heads[is_named]].sum()))
        self._remove_blocks(hashes, rows)
        tables.replicas.remove_all(number, heads)

    def _remove_blocks(self, hashes: Sequence[BlockHash], rows: Rows) -> None:
        """That have no replica any more, and are taken out already."""
        tables = self._tables
        tables.pins.blocks_removed(rows)
        if tables.heat is not None:
            for row, key in zip(rows.tolist(), hashes, strict=True):
                tables.heat.remove(row, key)
        tables.blocks.head.values[rows] = NO_ROW
        tables.blocks.remove_all(rows)
        if tables.left:
            for key in hashes:
                tables.left.pop(key, None)

    def _unlink(self, row: int, replica: int) -> None:
        """Take a replica out of its block; the block goes with its last one."""
        tables = self._tables
        head, following = tables.blocks.head.values, tables.replicas.next.values
        chain = tables.chain(row)
        if chain[0] == replica:
            head[row] = following[replica]
        else:
            following[chain[chain.index(replica) - 1]] = following[replica]
        slot = tables.replicas.slot.values.item(replica)
        if len(chain) == 1:
            hashes = [tables.blocks.hash_of(row)]
            self._remove_blocks(hashes, tables.blocks.take_all(hashes))
        tables.replicas.remove_all(slot, np.array([replica], np.intp))

    def _keep_away_names(self, blocks: Sequence[int], node: NodeId) -> None:
        """Of these objects the last replica goes with this node."""
        tables = self._tables
        if not tables.blocks.names:
            return
        mine = () if node in tables.announced else (node,)
        for row in blocks:
            if row in tables.blocks.names:
                key = tables.blocks.hash_of(row)
                _keep(tables.away, key, (*tables.left.get(key, ()), *mine))

    def _rows_on(self, number: int, max_rows: int) -> Rows:
        """The next ones from where the last look ended, looking at no more than _LOOK_ROWS for each wanted."""
        column = self._tables.replicas.slot.values
        start = self._sweep_at if self._sweep_at < len(column) else 0
        window = column[start : start + _LOOK_ROWS * max_rows]
        found = np.flatnonzero(window == number)[:max_rows]
        self._sweep_at = start + (int(found[-1]) + 1 if len(found) == max_rows else len(window))
        return found + start


def _keep(
    known: dict[BlockHash, tuple[NodeId, ...]], key: BlockHash, nodes: tuple[NodeId, ...]
) -> None:
    """Nothing for no nodes. The oldest goes where there are too many."""
    before = known.get(key, ())
    merged = (*before, *(node for node in dict.fromkeys(nodes) if node not in before))
    if merged:
        known[key] = merged
    if len(known) > MAX_AWAY:
        del known[next(iter(known))]
