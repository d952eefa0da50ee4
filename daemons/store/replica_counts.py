"""Which blocks have too few replicas, or more than they should: one look at the directory's columns.

Replicas count by domain: two that share the fate of one host are one. Those of a node that is away for a short while
count as there, those of a draining node as gone.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daemons.core.ids import BlockHash, NodeId
from daemons.store.block_table import NO_ROW
from daemons.store.directory import Directory

_NONE = -1


@dataclass(frozen=True, slots=True)
class CountRules:
    """`domains` of the nodes that are known, `num_domains` in which a copy could be; `default`: wanted of a block."""

    domains: Mapping[NodeId, str]
    num_domains: int
    draining: AbstractSet[NodeId]
    default: int


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """`short` and `surplus` are blocks, each up to the limit; `only_draining`: those of `short` to be saved first.

    `left` is, for each draining node, what would be short without it: (blocks, bytes).
    """

    short: list[BlockHash]
    only_draining: list[BlockHash]
    surplus: list[BlockHash]
    left: dict[NodeId, tuple[int, int]]


def count_replicas(directory: Directory, rules: CountRules, *, limit: int) -> ReplicaCounts:
    """O(replicas + domains * blocks) in numpy: about 10 ms for a million replicas on three hosts."""
    num_blocks = len(directory.blocks.kind)
    slots = directory.replicas.slot_column()
    if num_blocks == 0 or len(slots) == 0:
        return ReplicaCounts([], [], [], dict.fromkeys(rules.draining, (0, 0)))
    blocks = np.frombuffer(directory.replicas.block, np.int32)
    counted, live = _domain_by_slot(directory, rules)
    known = _count_domains(counted[slots], blocks, num_blocks)
    there = _count_domains(np.where(live, counted, _NONE)[slots], blocks, num_blocks)
    can_read = np.zeros(num_blocks, bool)
    can_read[blocks[live[slots]]] = True
    own = np.frombuffer(directory.blocks.wanted, np.uint8)
    asked = np.where(own > 0, own, rules.default)
    wanted = np.minimum(asked, max(1, rules.num_domains))
    short = can_read & (known < wanted)
    surplus = (asked > 1) & (there > asked)
    is_draining = np.zeros(num_blocks, bool)
    left = {}
    for node in rules.draining:
        on_node = _rows_on(directory, node, slots)
        held = blocks[on_node]
        is_draining[held] = True
        left_rows = on_node[short[held]]
        lengths = np.frombuffer(directory.replicas.length, np.uint64)[left_rows]
        left[node] = (len(np.unique(blocks[left_rows])), int(lengths.sum()))
    return ReplicaCounts(
        short=_hashes(directory, np.flatnonzero(short & ~is_draining), limit),
        only_draining=_hashes(directory, np.flatnonzero(short & is_draining), limit),
        surplus=_hashes(directory, np.flatnonzero(surplus), limit),
        left=left,
    )


def _domain_by_slot(
    directory: Directory, rules: CountRules
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The number of each slot's domain, _NONE where it does not count; which can be read. One more, for no slot."""
    numbers: dict[str, int] = {}
    opened = directory.replicas.slots
    domain = np.full(len(opened) + 1, _NONE, np.int32)
    live = np.zeros(len(opened) + 1, bool)
    for number, slot in enumerate(opened):
        if slot is None or (slot.is_dropped and not slot.is_kept):
            continue
        live[number] = not slot.is_dropped
        if slot.node not in rules.draining:
            name = rules.domains.get(slot.node, slot.host_id)
            domain[number] = numbers.setdefault(name, len(numbers))
    assert NO_ROW == _NONE, "a free row looks at the last entry, which counts for nothing"
    return domain, live


def _count_domains(
    domain: NDArray[np.int32], blocks: NDArray[np.int32], num_blocks: int
) -> NDArray[np.int64]:
    count = np.zeros(num_blocks, np.int64)
    for number in range(int(domain.max(initial=_NONE)) + 1):
        here = np.zeros(num_blocks, bool)
        here[blocks[domain == number]] = True
        count += here
    return count


def _rows_on(directory: Directory, node: NodeId, slots: NDArray[np.int32]) -> NDArray[np.intp]:
    return np.flatnonzero(np.isin(slots, directory.numbers_of(node)))


def _hashes(directory: Directory, rows: NDArray[np.intp], limit: int) -> list[BlockHash]:
    return [directory.blocks.hash_of(row) for row in rows[:limit].tolist()]
