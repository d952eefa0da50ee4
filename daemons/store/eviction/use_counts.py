"""How often each block of a directory was read in a window of time: a column over its rows, so that a request costs a
few operations however many blocks it reads.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from daemons.core.ids import BlockHash
from daemons.store.directory.block_table import BlockTable
from daemons.store.directory.columns import NO_ROW, Rows

_ONE: Final = np.uint32(1)


class RowCounts:
    """A block that comes into a row begins at nothing."""

    def __init__(self, blocks: BlockTable) -> None:
        self._blocks = blocks

    def use(self, blocks: Rows, limit: int) -> Sequence[tuple[BlockHash, int]]:
        """One use of each of these rows; those that came to a multiple of `limit` with it, or past one where a row is
        there several times.
        """
        uses = self._blocks.uses.values
        before = uses[blocks]
        np.add.at(uses, blocks, _ONE)
        counts = uses[blocks]
        if not len(counts) or counts.item(counts.argmax()) < limit:
            return []
        is_step = counts // limit > before // limit
        hashes = self._blocks.hashes_of(blocks[is_step])
        return list(zip(hashes, counts[is_step].tolist(), strict=True))

    def of(self, block_hash: BlockHash) -> int:
        row = self._blocks.row_by_hash.get(block_hash, NO_ROW)
        return 0 if row == NO_ROW else self._blocks.uses.values.item(row)

    def clear(self) -> None:
        self._blocks.uses.values.fill(0)
