"""Replicas for heat in a simulated pool: copied over the network while a prefix is hot, dropped when it is cool.

What is hot, where copies go and which one is too many is decided by the master's own rules.
"""

from collections.abc import Sequence
from functools import partial

from daemons.conductor.hot_blocks import HashCounts, HotBlocks, HotRules
from daemons.conductor.replication import BlockCopies, CopyNode, choose_surplus, choose_target
from daemons.core.ids import BlockHash, NodeId
from daemons.simulation.events import EventQueue
from daemons.simulation.network import Network
from daemons.simulation.pool import HIGH_WATERMARK, SimulatedPool


class HotCopies:
    """Nothing where the rules say that nothing is hot."""

    def __init__(
        self,
        pool: SimulatedPool,
        network: Network,
        events: EventQueue,
        rules: HotRules,
        block_bytes: int,
    ) -> None:
        self.num_made = 0
        self._pool = pool
        self._network = network
        self._events = events
        self._block_bytes = block_bytes
        self._window = HotBlocks(rules, HashCounts())

    def used(self, blocks: Sequence[int], num_matched: int) -> None:
        """A request reads the first so many of its blocks."""
        if not self._window.rules.uses:
            return
        now_s = self._events.now_s
        for cooled in self._window.roll(now_s=now_s):
            self._drop(cooled.hash, max(1, cooled.num_replicas), now_s)
        hashes = self._pool.hashes(blocks[:num_matched])
        depth_of = {block_hash: depth for depth, block_hash in enumerate(hashes)}
        depths: dict[tuple[NodeId, NodeId], list[int]] = {}
        nodes = self._nodes()
        for heat in self._window.use(hashes):
            block = self._look(heat.hash, heat.num_replicas)
            while block.holders and len(block.holders) < heat.num_replicas:
                # One target for the whole prefix where it has room: the choice is by the first block.
                first = BlockCopies(hashes[0], 1, block.wanted, block.holders)
                target = choose_target(first, nodes, full=HIGH_WATERMARK)
                if target is None:
                    break
                depths.setdefault((block.holders[0], target), []).append(depth_of[heat.hash])
                block = BlockCopies(block.hash, 1, block.wanted, (*block.holders, target))
        for (source, target), of_pair in depths.items():
            self._copy(source, target, blocks, of_pair)

    def _copy(
        self, source: NodeId, target: NodeId, blocks: Sequence[int], depths: Sequence[int]
    ) -> None:
        num_bytes = len(depths) * self._block_bytes
        there_s = self._network.send(source, target, num_bytes, now_s=self._events.now_s)
        self.num_made += len(depths)
        self._events.at(there_s, partial(self._arrived, target, blocks, depths))

    def _arrived(self, target: NodeId, blocks: Sequence[int], depths: Sequence[int]) -> None:
        self._pool.store_some(target, blocks, depths, now_s=self._events.now_s)

    def _drop(self, block_hash: BlockHash, wanted: int, now_s: float) -> None:
        """What is leased just now stays until it is evicted."""
        nodes = self._nodes()
        while True:
            surplus = choose_surplus(self._look(block_hash, wanted), nodes)
            if surplus is None or not self._pool.drop(surplus, block_hash, now_s=now_s):
                return

    def _look(self, block_hash: BlockHash, wanted: int) -> BlockCopies:
        return BlockCopies(block_hash, 1, wanted, tuple(self._pool.holders(block_hash)))

    def _nodes(self) -> dict[NodeId, CopyNode]:
        capacity = self._pool.capacity_blocks
        return {
            node: CopyNode(node, node, True, True, used, capacity)
            for node, used in self._pool.used_blocks.items()
        }
