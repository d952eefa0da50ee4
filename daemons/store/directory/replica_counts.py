"""Which blocks have too few replicas, or more than they should: a pass over the directory's columns, in steps.

Replicas count by domain: two that share the fate of one host are one. Those of a node that is away for a short while
count as there, those of a draining node as gone, but for what its object tier has where others can read that. What
changes during a pass may be counted or not: whoever acts on a result looks at the block again.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from daemons.core.ids import BlockHash, NodeId
from daemons.store.directory.columns import NO_ROW
from daemons.store.directory.directory import Directory

STEP_ROWS: Final = 32_768
"""About a millisecond."""

_NONE: Final = -1
_WORD_BITS: Final = 64
_BYTE_BITS: Final = 8
_ONES: Final = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


@dataclass(frozen=True, slots=True)
class CountRules:
    """`domains` of the nodes that are known, `num_domains` in which a copy could be; `default`: wanted of a block."""

    domains: Mapping[NodeId, str]
    num_domains: int
    draining: AbstractSet[NodeId]
    default: int
    is_object_shared: bool = False
    """A node that stays would read the object tier of one that is out."""


@dataclass(slots=True)
class ReplicaCounts:
    """`short` and `surplus` are blocks, each up to the limit; `only_draining`: those of `short` to be saved first.

    `left` is, for each draining node, what would be short without it: (blocks, bytes).
    """

    short: list[BlockHash] = field(default_factory=list)
    only_draining: list[BlockHash] = field(default_factory=list)
    surplus: list[BlockHash] = field(default_factory=list)
    left: dict[NodeId, tuple[int, int]] = field(default_factory=dict)
    left_below: dict[NodeId, int] = field(default_factory=dict)
    """So many blocks of these are not in the node's DRAM."""


def count_replicas(directory: Directory, rules: CountRules, *, limit: int) -> ReplicaCounts:
    """All at once: tens of milliseconds for a million replicas."""
    counting = CountPass(directory, rules, limit=limit)
    while not counting.step():
        pass
    return counting.counts


class CountPass:
    """Call `step` until it says that `counts` are complete: first over replicas, then over blocks."""

    def __init__(self, directory: Directory, rules: CountRules, *, limit: int) -> None:
        self.counts = ReplicaCounts(
            left=dict.fromkeys(rules.draining, (0, 0)),
            left_below=dict.fromkeys(rules.draining, 0),
        )
        self._directory = directory
        self._rules = rules
        self._limit = limit
        self._num_blocks = len(directory.blocks.kind)
        self._num_rows = len(directory.replicas.slot)
        self._domain, self._is_live = _domain_by_slot(directory, rules)
        self._num_bytes = 1 + int(self._domain.max()) // _BYTE_BITS
        shape = (1 + int(self._domain.max()) // _WORD_BITS, self._num_blocks)
        self._known = np.zeros(shape, np.uint64)
        """For each block the domains that have it, or may have it again soon; a bit each."""
        self._there = np.zeros(shape, np.uint64)
        self._can_read = np.zeros(self._num_blocks, bool)
        self._slots_of = {node: directory.slots.numbers_of(node) for node in rules.draining}
        self._slot_tiers = {number: slot.tier for number, slot in directory.slots}
        self._bytes_on = {node: np.zeros(self._num_blocks, np.uint64) for node in rules.draining}
        self._in_dram = {node: np.zeros(self._num_blocks, bool) for node in rules.draining}
        self._row = 0
        self._block = 0

    def step(self) -> bool:
        """A bounded piece; True when there is none left."""
        if self._row < self._num_rows:
            self._add_rows(self._row, min(self._row + STEP_ROWS, self._num_rows))
            self._row += STEP_ROWS
        elif self._block < self._num_blocks:
            self._judge(slice(self._block, min(self._block + STEP_ROWS, self._num_blocks)))
            self._block += STEP_ROWS
        return self._row >= self._num_rows and self._block >= self._num_blocks

    def _add_rows(self, start: int, end: int) -> None:
        replicas = self._directory.replicas
        slots = replicas.slot.values[start:end]
        blocks = replicas.block.values[start:end]
        # Slots that were opened since, and free rows, are none: the last entry.
        none = len(self._domain) - 1
        is_open = (slots != NO_ROW) & (slots < none) & (blocks < self._num_blocks)
        slots = np.where(is_open, slots, none)
        domain, live = self._domain[slots], self._is_live[slots]
        for number in np.flatnonzero(np.bincount(domain + 1)[1:]).tolist():
            word, bit = number // _WORD_BITS, np.uint64(1 << number % _WORD_BITS)
            is_here = domain == number
            self._known[word, blocks[is_here]] |= bit
            self._there[word, blocks[is_here & live]] |= bit
        self._can_read[blocks[live]] = True
        lengths = replicas.length.values[start:end]
        for node, numbers in self._slots_of.items():
            for slot in numbers:
                on_slot = slots == slot
                self._bytes_on[node][blocks[on_slot]] = lengths[on_slot]
                if self._slot_tiers[slot] == "dram":
                    self._in_dram[node][blocks[on_slot]] = True

    def _judge(self, part: slice) -> None:
        rules, counts = self._rules, self.counts
        own = self._directory.blocks.wanted.values[part]
        hot = self._directory.blocks.hot.values[part]
        asked = np.maximum(np.where(own > 0, own, rules.default), hot)
        wanted = np.minimum(asked, max(1, rules.num_domains))
        short = self._can_read[part] & (_num_bits(self._known[:, part], self._num_bytes) < wanted)
        surplus = (asked > 1) & (_num_bits(self._there[:, part], self._num_bytes) > asked)
        is_draining = np.zeros(len(own), bool)
        for node, bytes_on in self._bytes_on.items():
            held = bytes_on[part]
            is_draining |= held > 0
            is_left = short & (held > 0)
            left = held[is_left]
            before = counts.left[node]
            counts.left[node] = (before[0] + len(left), before[1] + int(left.sum()))
            counts.left_below[node] += int((is_left & ~self._in_dram[node][part]).sum())
        self._collect(counts.short, short & ~is_draining, part.start)
        self._collect(counts.only_draining, short & is_draining, part.start)
        self._collect(counts.surplus, surplus, part.start)

    def _collect(self, into: list[BlockHash], chosen: NDArray[np.bool_], start: int) -> None:
        room = self._limit - len(into)
        if room > 0:
            into += self._directory.blocks.hashes_of(np.flatnonzero(chosen)[:room] + start)


def _num_bits(words: NDArray[np.uint64], num_bytes: int) -> NDArray[np.int64]:
    """Of each column, in its first so many bytes."""
    count = np.zeros(words.shape[1], np.int64)
    for at in range(num_bytes):
        word, shift = divmod(at * _BYTE_BITS, _WORD_BITS)
        count += _ONES.take((words[word] >> np.uint64(shift)).astype(np.uint8))
    return count


def _domain_by_slot(
    directory: Directory, rules: CountRules
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The number of each slot's domain, _NONE where it does not count; which can be read. One more, for no slot."""
    numbers: dict[str, int] = {}
    domain = np.full(len(directory.slots) + 1, _NONE, np.int32)
    live = np.zeros(len(directory.slots) + 1, bool)
    for number, slot in directory.slots:
        if slot.is_swept:
            continue
        live[number] = not slot.is_dropped
        is_safe = rules.is_object_shared and slot.tier == "object"
        if is_safe or slot.node not in rules.draining:
            name = rules.domains.get(slot.node, slot.host_id)
            domain[number] = numbers.setdefault(name, len(numbers))
    return domain, live
