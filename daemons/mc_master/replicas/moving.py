"""Blocks that are told to go to a node: copied there, then deleted where they were, from all tiers.

What fails too often is given up, and said to whoever asks for the same again within a while.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from daemons.conductor.replication import CopyNode
from daemons.core.ids import BlockHash, NodeId, short
from daemons.mc_master.replicas.copies import MAX_WAITING, Copies
from daemons.mc_master.state import MasterState

log = logging.getLogger(__name__)

_MAX_TRIES: Final = 3
_MAX_LOOKS: Final = 64
"""Blocks weighed in one go."""
_GIVEN_UP_S: Final = 30.0
"""What was given up is not tried again for so long: who waits for it asks many times."""


@dataclass(slots=True)
class _Move:
    to: NodeId
    source: NodeId | None
    """Which replica goes afterwards; None: one of the others."""
    num_tries: int = 0
    why: str = "the node did not report it"
    """The last try failed."""


@dataclass(frozen=True, slots=True)
class _GivenUp:
    to: NodeId
    why: str
    until_s: float


class Moving:
    """Loop thread only."""

    def __init__(self, state: MasterState, copies: Copies) -> None:
        self._state = state
        self._copies = copies
        self._moves: dict[BlockHash, _Move] = {}
        self._given_up: dict[BlockHash, _GivenUp] = {}

    def __len__(self) -> int:
        return len(self._moves)

    def ask(self, block_hash: BlockHash, to: NodeId, source: NodeId | None) -> None:
        """Beyond MAX_WAITING nothing is taken: who asks again and again gets them all moved."""
        given_up = self._given_up.get(block_hash)
        if given_up is not None:
            if given_up.to == to and given_up.until_s > self._state.now_s():
                return
            del self._given_up[block_hash]
        if block_hash in self._moves or len(self._moves) < MAX_WAITING:
            self._moves.setdefault(block_hash, _Move(to, source)).to = to

    def num_of(self, hashes: Iterable[BlockHash]) -> int:
        return sum(block_hash in self._moves for block_hash in hashes)

    def failures(self, hashes: Collection[BlockHash], to: NodeId) -> list[str]:
        """Why each of these was given up on its way to this node."""
        if not self._given_up:
            return []
        found = (self._given_up.get(block_hash) for block_hash in hashes)
        return [each.why for each in found if each is not None and each.to == to]

    def failed(self, hashes: Iterable[BlockHash], node: NodeId, why: str) -> None:
        for block_hash in hashes:
            move = self._moves.get(block_hash)
            if move is None or move.to != node:
                continue
            move.why = why[:200]
            if move.num_tries >= _MAX_TRIES:
                del self._moves[block_hash]
                self._give_up(block_hash, move.to, move.why)

    def run_once(self, nodes: Mapping[NodeId, CopyNode]) -> None:
        """The first of those that wait; each goes behind the others until it is done."""
        leaving: dict[NodeId, list[BlockHash]] = {}
        for _ in range(min(_MAX_LOOKS, len(self._moves))):
            block_hash = next(iter(self._moves))
            move = self._moves.pop(block_hash)
            block, sources = self._copies.look(block_hash)
            if block is None:
                continue
            if move.to in block.holders:
                others = [node for node in block.holders if node != move.to]
                source = next(iter(others), None) if move.source is None else move.source
                if source in others and source is not None:
                    leaving.setdefault(source, []).append(block_hash)
                    self._leaves(source, block_hash, move.to)
                continue
            budget, now_s = self._copies.budget, self._state.now_s()
            if budget.num_of(block_hash):
                self._moves[block_hash] = move
                continue
            why = self._refusal(move, nodes, block.num_bytes)
            if why is not None:
                self._give_up(block_hash, move.to, why)
                continue
            self._moves[block_hash] = move
            if not sources:
                continue
            if not budget.may_start(move.to, block.num_bytes, is_paced=True, now_s=now_s):
                break
            move.num_tries += 1
            self._copies.order(block, sources, move.to, is_paced=True)
        for node, hashes in leaving.items():
            self._copies.delete(node, hashes)

    def _refusal(self, move: _Move, nodes: Mapping[NodeId, CopyNode], num_bytes: int) -> str | None:
        """Why it is not tried again; into a node that evicts it would be the first to go."""
        node = nodes.get(move.to)
        if node is None:
            return f"node {move.to} is gone"
        full = self._state.config.pool.low_watermark
        coming_bytes = self._copies.budget.in_flight_to(move.to) + num_bytes
        if node.used_bytes + coming_bytes > full * node.capacity_bytes:
            return f"no room: moves fill node {move.to} to {full:.0%}"
        return move.why if move.num_tries >= _MAX_TRIES else None

    def _give_up(self, block_hash: BlockHash, to: NodeId, why: str) -> None:
        log.warning("not moved block=%s to=%s why=%r", short(block_hash), to, why)
        self._given_up.pop(block_hash, None)
        if len(self._given_up) >= MAX_WAITING:
            del self._given_up[next(iter(self._given_up))]
        until_s = self._state.now_s() + _GIVEN_UP_S
        self._given_up[block_hash] = _GivenUp(to, why, until_s)

    def _leaves(self, node: NodeId, block_hash: BlockHash, to: NodeId) -> None:
        """Its end there will be an event that says where it is now; of too many the oldest are only removed."""
        moved_to = self._state.moved_to
        if len(moved_to) >= MAX_WAITING:
            del moved_to[next(iter(moved_to))]
        moved_to[node, block_hash] = to
