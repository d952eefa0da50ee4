"""What tenants hold in the pool's DRAM, and what of one goes first. Over the directory's columns, in numpy; only looks,
but for the victims that it names.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.packed import BlockKind
from daemons.protocol.tenant import tenant_of
from daemons.store.directory.directory import Directory
from daemons.store.directory.object_rows import OBJECT_MODEL
from daemons.store.directory.tables import RENAME_AFTER_S
from daemons.store.eviction.pins import HARD


@dataclass(slots=True)
class TenantHeld:
    """Bytes in DRAM; what was named as a victim just now is no longer counted."""

    used_bytes: int = 0
    leased_bytes: int = 0
    """And not pinned hard."""
    pinned_bytes: int = 0
    """Hard."""


def owner_of(kind: BlockKind) -> str:
    """Whom blocks of such a kind count for."""
    return tenant_of(kind.tenant, kind.namespace, is_object=kind.model == OBJECT_MODEL)


def held_by_tenant(directory: Directory, *, now_s: float) -> dict[str, TenantHeld]:
    """Of everybody that holds something."""
    rows, blocks = _in_dram(directory, now_s)
    if not len(rows):
        return {}
    kinds = directory.blocks.kind.values[blocks]
    lengths = directory.replicas.length.values[rows].astype(np.float64)
    is_leased = directory.leases.until_s.values[blocks] > now_s
    pins = directory.pins.levels(directory.blocks, now_s=now_s)
    is_pinned = np.zeros(len(rows), bool) if pins is None else pins[blocks] == HARD
    found: dict[str, TenantHeld] = {}
    columns = [
        np.bincount(kinds, weights=lengths * chosen).tolist()
        for chosen in (np.ones(len(rows)), is_leased & ~is_pinned, is_pinned)
    ]
    for kind_id, (used, leased, pinned) in enumerate(zip(*columns, strict=True)):
        kind = directory.blocks.kinds[kind_id]
        if kind is None or not used:
            continue
        held = found.setdefault(owner_of(kind), TenantHeld())
        held.used_bytes += int(used)
        held.leased_bytes += int(leased)
        held.pinned_bytes += int(pinned)
    return found


def name_victims(
    directory: Directory, tenant: str, num_bytes: int, *, now_s: float, max_blocks: int
) -> tuple[dict[NodeId, list[BlockHash]], int]:
    """The tenant's replicas that go first, by node, and their bytes; no leased nor hard pinned ones."""
    rows, blocks = _in_dram(directory, now_s)
    is_mine = np.array(
        [kind is not None and owner_of(kind) == tenant for kind in directory.blocks.kinds], bool
    )
    if not len(rows) or not is_mine.any():
        return {}, 0
    may_go = is_mine[directory.blocks.kind.values[blocks]]
    may_go &= directory.leases.until_s.values[blocks] <= now_s
    pins = directory.pins.levels(directory.blocks, now_s=now_s)
    if pins is not None:
        may_go &= pins[blocks] != HARD
    chosen = directory.choice.lowest(rows[may_go], num_bytes)[:max_blocks]
    named: dict[NodeId, list[BlockHash]] = {}
    named_bytes = 0
    replicas = directory.replicas
    replicas.name_victims(chosen, now_s + RENAME_AFTER_S)
    hashes = directory.blocks.hashes_of(replicas.block.values[chosen])
    lengths = replicas.length.values[chosen].tolist()
    for row, block_hash, length in zip(chosen.tolist(), hashes, lengths, strict=True):
        slot = directory.tables.slot_of(row)
        slot.pending_bytes += length
        slot.pending_until_s = now_s + RENAME_AFTER_S
        named_bytes += length
        named.setdefault(slot.node, []).append(block_hash)
    return named, named_bytes


def _in_dram(directory: Directory, now_s: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(rows of replicas, rows of their blocks), without those named as victims."""
    replicas = directory.replicas
    is_counted = np.zeros(len(directory.slots) + 1, bool)  # NO_ROW looks at the last one
    for number, slot in directory.slots:
        is_counted[number] = not slot.is_dropped and slot.tier == "dram"
    is_here = is_counted[replicas.slot.values]
    is_here &= replicas.named_until_s.values <= now_s
    rows = np.flatnonzero(is_here)
    return rows, replicas.block.values[rows].astype(np.intp)
