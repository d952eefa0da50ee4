"""Which blocks are pinned, by hash, so that a pin outlives its block's replicas; and, as a column over the directory's
block rows, which blocks that holds: a pinned block's whole prefix is pinned with it, or the pin would be of no use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash
from daemons.store.directory.block_table import BlockTable
from daemons.store.directory.columns import Rows

MAX_PINS: Final = 4096
"""Each holds a prefix of any length."""
FREE, SOFT, HARD = 0, 1, 2


@dataclass(frozen=True, slots=True)
class HeldPin:
    """`level` is SOFT or HARD; both only grow towards the beginning of a prefix."""

    level: int
    until_s: float


class PinTable:
    """At most MAX_PINS. What they hold is found again when blocks came or a pin changed: O(pins + blocks held)."""

    def __init__(self) -> None:
        self.pins: dict[BlockHash, HeldPin] = {}
        self.num_changes = 0
        """Grows whenever `held` may have changed."""
        self._held: dict[int, HeldPin] = {}
        self._gaps: set[BlockHash] = set()
        """Where a held prefix has no block: one that comes there is held too."""
        self._is_stale = False
        self._next_end_s = inf

    def __len__(self) -> int:
        return len(self.pins)

    def pin(self, hashes: Sequence[BlockHash], wanted: HeldPin) -> None:
        """All or none; raises Exhausted. A new pin replaces the one before."""
        num_pins = len(self.pins.keys() | set(hashes))
        if num_pins > MAX_PINS:
            raise Exhausted(
                f"{num_pins} pins are more than the {MAX_PINS} there may be; pin the last block of a prefix, "
                "it holds all before it, or unpin others"
            )
        self.pins.update(dict.fromkeys(hashes, wanted))
        self._next_end_s = min(self._next_end_s, wanted.until_s)
        self._change()

    def unpin(self, hashes: Sequence[BlockHash]) -> list[BlockHash]:
        """Those that were pinned."""
        ended = [block_hash for block_hash in hashes if self.pins.pop(block_hash, None)]
        self._change()
        return ended

    def extend(self, by_s: float, *, now_s: float) -> None:
        """Of those that were held `by_s` ago: nobody could renew them since."""
        if not self.pins:
            return
        self.pins = {
            block_hash: HeldPin(pin.level, pin.until_s + by_s)
            for block_hash, pin in self.pins.items()
            if pin.until_s > now_s - by_s
        }
        self._next_end_s = min((pin.until_s for pin in self.pins.values()), default=inf)
        self._change()

    def blocks_added(self, hashes: Sequence[BlockHash]) -> None:
        """The directory has blocks that it had not when `held` was found."""
        if not self.pins and not self._gaps:
            return
        if any(block_hash in self.pins or block_hash in self._gaps for block_hash in hashes):
            self._change()

    def replicas_added(self, rows: Rows) -> None:
        """Another node has these, too."""
        if self._held and not self._held.keys().isdisjoint(rows.tolist()):
            self.num_changes += 1

    def blocks_removed(self, rows: Rows) -> None:
        """Before the rows are reused."""
        if self._held and not self._held.keys().isdisjoint(rows.tolist()):
            self._change()

    def held(self, blocks: BlockTable, *, now_s: float) -> dict[int, HeldPin]:
        """By block row."""
        if now_s >= self._next_end_s:
            self._expire(now_s)
        if self._is_stale:
            self._is_stale = False
            self._held, self._gaps = {}, set()
            for block_hash, pin in self.pins.items():
                self._hold(blocks, block_hash, pin)
        return self._held

    def levels(self, blocks: BlockTable, *, now_s: float) -> NDArray[np.uint8] | None:
        """The column: FREE, SOFT or HARD of each block row; None where nothing is pinned."""
        held = self.held(blocks, now_s=now_s) if self.pins else None
        if not held:
            return None
        column = np.zeros(len(blocks.kind), np.uint8)
        column[list(held)] = [pin.level for pin in held.values()]
        return column

    def _expire(self, now_s: float) -> None:
        self.pins = {each: pin for each, pin in self.pins.items() if pin.until_s > now_s}
        self._next_end_s = min((pin.until_s for pin in self.pins.values()), default=inf)
        self._change()

    def _change(self) -> None:
        self._is_stale = True
        self.num_changes += 1

    def _hold(self, blocks: BlockTable, block_hash: BlockHash, pin: HeldPin) -> None:
        """Up the prefix, to the first block that is held as firmly: those above it are too."""
        level, until_s = pin.level, pin.until_s
        while (row := blocks.row_by_hash.get(block_hash)) is not None:
            before = self._held.get(row)
            if before is not None:
                level, until_s = max(level, before.level), max(until_s, before.until_s)
                if before == HeldPin(level, until_s):
                    return
            self._held[row] = HeldPin(level, until_s)
            block_hash = blocks.parent_of(row)
        self._gaps.add(block_hash)
