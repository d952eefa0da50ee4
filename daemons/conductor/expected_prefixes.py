"""Prefixes that are being computed right now: short-lived entries made with each plan, so that a burst of prompts which
share one goes where the first of them makes it, instead of computing it again elsewhere. Pure.

An instance serves in order, so whoever is planned behind the first finds its blocks there. An entry that comes to
nothing costs a plan that is less good, never a wrong answer: what is not there is computed.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from daemons.core.ids import BlockHash, NodeId

LIFE_S: Final = 5.0
"""After a prefill is predicted to end: by then its blocks are in the directory."""
MAX_BLOCKS: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class _Making:
    node: NodeId
    until_s: float
    hashes: tuple[BlockHash, ...]


class ExpectedPrefixes:
    """The newest plan counts where several make the same block. Bounded by MAX_BLOCKS."""

    def __init__(self) -> None:
        self._by_hash: dict[BlockHash, _Making] = {}
        self._order: deque[_Making] = deque()
        self._num_blocks = 0

    def __len__(self) -> int:
        return self._num_blocks

    def add(
        self, node: NodeId, hashes: Sequence[BlockHash], *, ready_s: float, now_s: float
    ) -> None:
        """The instance will have made these blocks, a chain's next ones, by `ready_s`."""
        while self._order and self._order[0].until_s <= now_s:
            self._drop()
        if not hashes:
            return
        making = _Making(node, ready_s + LIFE_S, tuple(hashes))
        self._by_hash.update(dict.fromkeys(making.hashes, making))
        self._order.append(making)
        self._num_blocks += len(making.hashes)
        while self._num_blocks > MAX_BLOCKS:
            self._drop()

    def find(
        self, hashes: Sequence[BlockHash], start: int, *, now_s: float
    ) -> tuple[NodeId, int] | None:
        """Who makes the blocks of this chain from `start` on, and up to which index; None: nobody."""
        first = self._by_hash.get(hashes[start]) if start < len(hashes) else None
        if first is None or first.until_s <= now_s:
            return None
        end = start + 1
        while end < len(hashes):
            making = self._by_hash.get(hashes[end])
            if making is None or making.node != first.node or making.until_s <= now_s:
                break
            end += 1
        return first.node, end

    def _drop(self) -> None:
        making = self._order.popleft()
        self._num_blocks -= len(making.hashes)
        for block_hash in making.hashes:
            if self._by_hash.get(block_hash) is making:
                del self._by_hash[block_hash]
