"""Blocks that are told to go to a node: copied there, then freed where they were."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from daemons.conductor.replication import CopyNode
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.copies import MAX_WAITING, Copies
from daemons.mc_master.state import MasterState

_MAX_TRIES: Final = 3
_MAX_LOOKS: Final = 64
"""Blocks weighed in one go."""


@dataclass(slots=True)
class _Move:
    to: NodeId
    source: NodeId | None
    """Which replica goes afterwards; None: one of the others."""
    num_tries: int = 0


class Moving:
    """Loop thread only."""

    def __init__(self, state: MasterState, copies: Copies) -> None:
        self._state = state
        self._copies = copies
        self._moves: dict[BlockHash, _Move] = {}

    def __len__(self) -> int:
        return len(self._moves)

    def ask(self, block_hash: BlockHash, to: NodeId, source: NodeId | None) -> None:
        """Beyond MAX_WAITING nothing is taken: who asks again and again gets them all moved."""
        if block_hash in self._moves or len(self._moves) < MAX_WAITING:
            self._moves.setdefault(block_hash, _Move(to, source)).to = to

    def num_of(self, hashes: Iterable[BlockHash]) -> int:
        return sum(block_hash in self._moves for block_hash in hashes)

    def failed(self, hashes: Iterable[BlockHash]) -> None:
        for block_hash in hashes:
            move = self._moves.get(block_hash)
            if move is not None and move.num_tries >= _MAX_TRIES:
                del self._moves[block_hash]

    def run_once(self, nodes: Mapping[NodeId, CopyNode]) -> None:
        """The first of those that wait; each goes behind the others until it is done."""
        freed: dict[NodeId, list[BlockHash]] = {}
        for _ in range(min(_MAX_LOOKS, len(self._moves))):
            block_hash = next(iter(self._moves))
            move = self._moves.pop(block_hash)
            block, sources = self._copies.look(block_hash)
            if block is None or move.to not in nodes:
                continue
            if move.to in block.holders:
                others = [node for node in block.holders if node != move.to]
                source = next(iter(others), None) if move.source is None else move.source
                if source in others and source is not None:
                    freed.setdefault(source, []).append(block_hash)
                    self._leaves(source, block_hash, move.to)
                continue
            self._moves[block_hash] = move
            budget, now_s = self._copies.budget, self._state.now_s()
            if budget.num_of(block_hash) or not sources:
                continue
            if not budget.may_start(move.to, block.num_bytes, is_paced=True, now_s=now_s):
                break
            move.num_tries += 1
            self._copies.order(block, sources, move.to, is_paced=True)
        for node, hashes in freed.items():
            self._copies.free(node, hashes)

    def _leaves(self, node: NodeId, block_hash: BlockHash, to: NodeId) -> None:
        """Its end there will be an event that says where it is now; of too many the oldest are only removed."""
        moved_to = self._state.moved_to
        if len(moved_to) >= MAX_WAITING:
            del moved_to[next(iter(moved_to))]
        moved_to[node, block_hash] = to
