"""What tenants hold in the pool's DRAM, and what of one goes first. Over the directory's columns, in numpy; only looks,
but for the victims that it names.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.tenant import tenant_of
from daemons.store.block_table import NO_ROW
from daemons.store.directory import RENAME_AFTER_S, Directory
from daemons.store.object_rows import OBJECT_MODEL
from daemons.store.pins import HARD


@dataclass(slots=True)
class TenantHeld:
    """Bytes in DRAM; what was named as a victim just now is no longer counted."""

    used_bytes: int = 0
    leased_bytes: int = 0
    pinned_bytes: int = 0
    """Hard, and not leased."""


def owner_of(namespace: bytes, model: str, tenant: str) -> str:
    """Whom blocks of such a kind count for."""
    return tenant_of(tenant, namespace, is_object=model == OBJECT_MODEL)


def held_by_tenant(directory: Directory, *, now_s: float) -> dict[str, TenantHeld]:
    """Of everybody that holds something."""
    rows, blocks = _in_dram(directory, now_s)
    if not len(rows):
        return {}
    kinds = np.frombuffer(directory.blocks.kind, np.int32)[blocks]
    lengths = np.frombuffer(directory.replicas.length, np.uint64)[rows].astype(np.float64)
    is_leased = directory.leases.until_column()[blocks] > now_s
    pins = directory.pins.levels(directory.blocks, now_s=now_s)
    is_pinned = np.zeros(len(rows), bool) if pins is None else pins[blocks] == HARD
    found: dict[str, TenantHeld] = {}
    columns = [
        np.bincount(kinds, weights=lengths * chosen).tolist()
        for chosen in (np.ones(len(rows)), is_leased, is_pinned & ~is_leased)
    ]
    for kind_id, (used, leased, pinned) in enumerate(zip(*columns, strict=True)):
        kind = directory.blocks.kinds[kind_id]
        if kind is None or not used:
            continue
        held = found.setdefault(owner_of(*kind), TenantHeld())
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
        [kind is not None and owner_of(*kind) == tenant for kind in directory.blocks.kinds], bool
    )
    if not len(rows) or not is_mine.any():
        return {}, 0
    may_go = is_mine[np.frombuffer(directory.blocks.kind, np.int32)[blocks]]
    may_go &= directory.leases.until_column()[blocks] <= now_s
    pins = directory.pins.levels(directory.blocks, now_s=now_s)
    if pins is not None:
        may_go &= pins[blocks] != HARD
    chosen = directory.choice.lowest(rows[may_go], num_bytes)[:max_blocks]
    named: dict[NodeId, list[BlockHash]] = {}
    named_bytes = 0
    replicas = directory.replicas
    for row in chosen:
        slot = replicas.slot_of(row)
        replicas.name_victim(row, now_s + RENAME_AFTER_S)
        slot.pending_bytes += replicas.length[row]
        slot.pending_until_s = now_s + RENAME_AFTER_S
        named_bytes += replicas.length[row]
        named.setdefault(slot.node, []).append(directory.blocks.hash_of(replicas.block[row]))
    return named, named_bytes


def _in_dram(directory: Directory, now_s: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(rows of replicas, rows of their blocks), without those named as victims."""
    replicas = directory.replicas
    is_counted = np.array(
        [
            slot is not None and not slot.is_dropped and slot.tier == "dram"
            for slot in replicas.slots
        ]
        + [False],  # NO_ROW looks at the last one
        bool,
    )
    column = replicas.slot_column()
    if not len(column):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    is_here = is_counted[column] & (column != NO_ROW)
    is_here &= np.frombuffer(replicas.named_until_s, np.float64) <= now_s
    rows = np.flatnonzero(is_here)
    return rows, np.frombuffer(replicas.block, np.int32)[rows].astype(np.intp)
