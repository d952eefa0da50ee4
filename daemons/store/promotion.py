"""Which blocks that were read from a lower tier stay in DRAM: those that are asked for more than once. Pure.

Counts age by halving, as in TinyLFU (Einziger et al., 2017), so what was hot once does not stay so for good.
"""

from collections import OrderedDict
from typing import Final

from daemons.core.ids import BlockHash

_MAX_COUNTED: Final = 1 << 16
_AGE_EVERY: Final = 8 * _MAX_COUNTED


class Promotion:
    """Counts the uses of at most 65,536 blocks, the most recently used ones."""

    def __init__(self, min_uses: int) -> None:
        self.min_uses = min_uses
        self._uses: OrderedDict[BlockHash, int] = OrderedDict()
        self._num_counted = 0

    def use(self, block_hash: BlockHash) -> None:
        self._uses[block_hash] = self._uses.get(block_hash, 0) + 1
        self._uses.move_to_end(block_hash)
        if len(self._uses) > _MAX_COUNTED:
            self._uses.popitem(last=False)
        self._num_counted += 1
        if self._num_counted >= _AGE_EVERY:
            self._age()

    def admits(self, block_hash: BlockHash, *, has_room: bool) -> bool:
        """With room to spare whatever was read stays; else nothing makes others leave that was used too rarely."""
        return has_room or self._uses.get(block_hash, 0) >= self.min_uses

    def _age(self) -> None:
        self._num_counted = 0
        halved = ((block_hash, uses // 2) for block_hash, uses in self._uses.items())
        self._uses = OrderedDict((block_hash, uses) for block_hash, uses in halved if uses)
