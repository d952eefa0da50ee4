"""The directory's objects as an operator and the master's housekeeping see them: pages of names, totals, orphans.

Pure, bounded work per call. An orphan is a chunk whose object was never sealed, or is gone, in that version.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.objects import ListedName, NamespaceStat
from daemons.store.directory.directory import Directory

OBJECT_MODEL: Final = ""
"""What objects and their chunks have for a model: KV always has one."""
MAX_SCANNED: Final = 20_000
"""Rows looked at for one page."""


@dataclass(frozen=True, slots=True)
class NamePage:
    """`cursor` is where the next page begins; None after the last."""

    names: list[ListedName]
    cursor: int | None


def list_names(
    directory: Directory, namespace: bytes, prefix: bytes, *, cursor: int, limit: int, now_s: float
) -> NamePage:
    """From row `cursor` on; names that come or go meanwhile may be missed or not."""
    names, end = directory.blocks.names, len(directory.blocks.kind)
    found: list[ListedName] = []
    row = max(0, cursor)
    stop = min(end, row + MAX_SCANNED)
    while row < stop and len(found) < limit:
        named = names.get(row)
        if named is not None and named.namespace == namespace and named.name.startswith(prefix):
            found.append(_listed(directory, row, now_s))
        row += 1
    return NamePage(found, row if row < end else None)


def stat_namespaces(directory: Directory) -> list[NamespaceStat]:
    """O(names)."""
    blocks = directory.blocks
    return [
        NamespaceStat(
            namespace=namespace,
            num_names=len(rows),
            value_bytes=sum(blocks.names[row].value_bytes for row in rows.values()),
        )
        for namespace, rows in blocks.rows_by_name.items()
    ]


def find_orphans(
    directory: Directory,
    is_held: Callable[[BlockHash, int], bool],
    *,
    first_row: int,
    sealed_before_s: float,
) -> dict[NodeId, list[BlockHash]]:
    """Chunks by node that no object needs: sealed before then, their put not under way (`is_held`).

    Looks at MAX_SCANNED rows from `first_row` on.
    """
    blocks, replicas = directory.blocks, directory.replicas
    window = slice(first_row, first_row + MAX_SCANNED)
    kinds = [
        number
        for number, kind in enumerate(blocks.kinds)
        if kind is not None and kind.model == OBJECT_MODEL
    ]
    if not kinds:
        return {}
    is_chunk = np.isin(blocks.kind.values[window], kinds)
    is_chunk &= blocks.created_s.values[window] < sealed_before_s
    is_chunk &= blocks.depth.values[window] > 0
    found: dict[NodeId, list[BlockHash]] = {}
    rows: list[int] = (np.flatnonzero(is_chunk) + first_row).tolist()
    for row in rows:
        key = blocks.parent_of(row)
        version = replicas.number("version", blocks.head.values.item(row))
        if is_held(key, version):
            continue
        object_row = blocks.row_by_hash.get(key)
        if object_row is not None:
            object_head = blocks.head.values.item(object_row)
            if replicas.number("version", object_head) == version:
                continue
        for node in {place[0] for place, _ in directory.versions_of(blocks.hash_of(row))}:
            found.setdefault(node, []).append(blocks.hash_of(row))
    return found


def _listed(directory: Directory, row: int, now_s: float) -> ListedName:
    blocks = directory.blocks
    named = blocks.names[row]
    chain = directory.tables.chain(row)
    slots = map(directory.tables.slot_of, chain)
    return ListedName(
        name=named.name,
        value_bytes=named.value_bytes,
        version=directory.replicas.number("version", chain[0]),
        nodes=list(dict.fromkeys(slot.node for slot in slots if not slot.is_dropped)),
        age_s=max(0.0, now_s - blocks.created_s.values.item(row)),
        idle_s=max(0.0, now_s - directory.leases.used_s.values.item(row)),
    )
