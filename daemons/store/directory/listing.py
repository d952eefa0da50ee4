"""Looking at the directory as an operator does: filters, pages, totals. Nothing here changes leases or recency."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daemons.core.errors import Rejected
from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.block import BlockFilter
from daemons.protocol.cache import ListedBlock
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.store.directory.columns import NO_ROW
from daemons.store.directory.directory import Directory
from daemons.store.directory.slot_table import TIERS, Place
from daemons.store.eviction.pins import HARD


@dataclass(frozen=True, slots=True)
class Totals:
    """Of the whole directory, at one moment."""

    num_blocks: int
    num_replicas: int
    num_leased: int
    num_pinned: int
    blocks_by_model: dict[str, int]


def list_blocks(
    directory: Directory,
    wanted: BlockFilter,
    *,
    after: BlockHash | None,
    limit: int,
    now_s: float,
) -> tuple[list[ListedBlock], bool]:
    """A page in the order of the hash, and whether there are more; O(blocks) in numpy whatever the page."""
    rows = _matching_rows(directory, wanted, now_s)
    first, last = directory.blocks.key_columns()
    first, last = first[rows], last[rows]
    if after is not None:
        high, low = _key(after)
        beyond = (first > high) | ((first == high) & (last > low))
        rows, first, last = rows[beyond], first[beyond], last[beyond]
    if len(rows) > 4 * limit:
        near = first <= np.partition(first, limit)[limit]
        rows, first, last = rows[near], first[near], last[near]
    rows = rows[np.lexsort((last, first))]
    page: list[int] = rows[:limit].tolist()
    return [_listed(directory, row, now_s) for row in page], len(rows) > limit


def find_block(directory: Directory, key: BlockHash, *, now_s: float) -> ListedBlock | None:
    """One block as it is listed; None where no node that is there has it."""
    row = directory.blocks.row_by_hash.get(key)
    found = None if row is None else _listed(directory, row, now_s)
    return found if found is not None and found.nodes else None


def select_replicas(
    directory: Directory, wanted: BlockFilter, *, now_s: float
) -> dict[Place, list[BlockHash]]:
    """What each tier of each node holds of the blocks that match; with `wanted.node`, on that node only."""
    rows = np.zeros(len(directory.blocks.kind), bool)
    rows[_matching_rows(directory, wanted, now_s)] = True
    found: dict[Place, list[BlockHash]] = {}
    for place, number in directory.slots.by_place.items():
        if wanted.node not in (None, place[0]):
            continue
        held = np.flatnonzero(directory.replicas.slot.values == number)
        if len(held):
            blocks = directory.replicas.block.values[held]
            chosen = blocks[rows[blocks]]
            if len(chosen):
                found[place] = directory.blocks.hashes_of(chosen)
    return found


def total(directory: Directory, *, now_s: float) -> Totals:
    """Exact, also while a dropped node is still being swept."""
    live = _live_rows(directory)
    kinds = directory.blocks.kind.values[live]
    by_model: dict[str, int] = {}
    for kind_id, count in enumerate(np.bincount(kinds, minlength=0).tolist()):
        kind = directory.blocks.kinds[kind_id]
        if kind is not None and count:
            by_model[kind.model] = by_model.get(kind.model, 0) + count
    return Totals(
        num_blocks=len(live),
        num_replicas=sum(slot.num_replicas for _, slot in directory.slots if not slot.is_dropped),
        num_leased=int((directory.leases.until_s.values[live] > now_s).sum()),
        num_pinned=len(directory.pins.held(directory.blocks, now_s=now_s)),
        blocks_by_model=by_model,
    )


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Bytes in one node's DRAM that eviction leaves alone, each counted once."""

    leased_bytes: int
    """Of blocks that are not pinned hard: a pin mostly outlasts a lease."""
    pinned_bytes: int
    """Hard."""


def held_back(directory: Directory, node: NodeId, *, now_s: float) -> HeldBack:
    number = directory.slots.by_place.get((node, "dram"))
    if number is None:
        return HeldBack(0, 0)
    held = np.flatnonzero(directory.replicas.slot.values == number)
    if len(held) == 0:
        return HeldBack(0, 0)
    blocks = directory.replicas.block.values[held]
    lengths = directory.replicas.length.values[held]
    is_leased = directory.leases.until_s.values[blocks] > now_s
    pins = directory.pins.levels(directory.blocks, now_s=now_s)
    is_pinned = np.zeros(len(held), bool) if pins is None else pins[blocks] == HARD
    return HeldBack(int(lengths[is_leased & ~is_pinned].sum()), int(lengths[is_pinned].sum()))


def _live_rows(directory: Directory, node: NodeId | None = None) -> NDArray[np.intp]:
    """Blocks with a replica on a node that was not dropped, or on this one node."""
    slots = directory.replicas.slot.values
    numbers = directory.slots.is_live() if node is None else directory.slots.is_on(node)
    is_live = numbers[slots]
    has_live = np.zeros(len(directory.blocks.kind), bool)
    has_live[directory.replicas.block.values[is_live]] = True
    return np.flatnonzero(has_live)


def _matching_rows(directory: Directory, wanted: BlockFilter, now_s: float) -> NDArray[np.intp]:
    blocks = directory.blocks
    rows = _live_rows(directory, wanted.node)
    if wanted.hashes is not None:
        rows = np.intersect1d(rows, _rows_of(directory, wanted.hashes))
    if len(rows) == 0:
        return rows
    is_wanted = np.array(
        [
            kind is not None
            and wanted.model in (None, kind.model)
            and wanted.tenant in (None, kind.tenant)
            for kind in blocks.kinds
        ],
        bool,
    )
    rows = np.compress(is_wanted[blocks.kind.values[rows]], rows)
    if wanted.older_than_s is not None:
        created_s = blocks.created_s.values[rows]
        rows = np.compress(now_s - created_s > wanted.older_than_s, rows)
    if wanted.hash_prefix:
        low, high = _prefix_bounds(wanted.hash_prefix)
        first, last = blocks.key_columns()
        first, last = first[rows], last[rows]
        not_below = (first > low[0]) | ((first == low[0]) & (last >= low[1]))
        not_above = (first < high[0]) | ((first == high[0]) & (last <= high[1]))
        rows = np.compress(not_below & not_above, rows)
    return rows


def _rows_of(directory: Directory, hashes: Sequence[BlockHash]) -> NDArray[np.intp]:
    found = directory.blocks.find_all(hashes)
    return np.compress(found != NO_ROW, found)


def _prefix_bounds(prefix: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Smallest and largest key that begins with these hex digits."""
    digits = 2 * HASH_BYTES
    try:
        int(prefix, 16)
        low, high = (
            bytes.fromhex(prefix.ljust(digits, "0")),
            bytes.fromhex(prefix.ljust(digits, "f")),
        )
    except ValueError:
        low = b""
    if len(low) != HASH_BYTES:
        raise Rejected(f"hash prefix {prefix!r} is not 1 to {digits} hex digits")
    return _key(low), _key(high)


def _key(block_hash: bytes) -> tuple[int, int]:
    padded = block_hash[:HASH_BYTES].ljust(HASH_BYTES, b"\0")
    return int.from_bytes(padded[:8], "big"), int.from_bytes(padded[8:], "big")


def _listed(directory: Directory, row: int, now_s: float) -> ListedBlock:
    slot_of = directory.tables.slot_of
    live = [each for each in directory.tables.chain(row) if not slot_of(each).is_dropped]
    pin = directory.pins.held(directory.blocks, now_s=now_s).get(row)
    live.sort(key=lambda replica: TIERS.index(slot_of(replica).tier))
    tiers = [slot_of(replica).tier for replica in live]
    return ListedBlock(
        meta=directory.blocks.meta_of(row),
        nodes=[slot_of(replica).node for replica in live],
        tier=tiers[0] if tiers else "dram",
        tiers=tiers,
        length=directory.replicas.length.values.item(live[0]) if live else 0,
        age_s=max(0.0, now_s - directory.blocks.created_s.values.item(row)),
        idle_s=max(0.0, now_s - directory.leases.used_s.values.item(row)),
        is_leased=directory.leases.is_leased(row, now_s=now_s),
        pin="none" if pin is None else "hard" if pin.level == HARD else "soft",
        pin_left_s=0.0 if pin is None else pin.until_s - now_s,
        wanted=directory.blocks.wanted.values.item(row) or directory.choice.default_wanted,
    )
