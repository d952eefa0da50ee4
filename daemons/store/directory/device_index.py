"""Which blocks lie in the KV arenas of which instances: the device tier, as the instances report it. Pure.

Apart from the directory on purpose: these are hints to schedule by. Nobody but the instance itself reads such a
replica, it may be gone at any time, and it counts neither for eviction nor for the copies that a block should have.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from daemons.core.errors import ProtocolError
from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.block import BlockFilter, BlockMeta
from daemons.protocol.packed import SealedBlocks
from daemons.store.directory.report_check import check_sealed

MAX_BLOCKS: Final = 1 << 17
"""Of one instance: eight million tokens in blocks of 64."""

Nodes = frozenset[NodeId]
_NOBODY: Final[Nodes] = frozenset()


@dataclass(slots=True)
class DeviceBlock:
    """`nodes` is one object for blocks that the same instances hold, so that comparing them costs nothing."""

    meta: BlockMeta
    length: int
    made_s: float
    nodes: Nodes


class DeviceIndex:
    """Every method costs O(its arguments) except `select`, which looks at all blocks."""

    def __init__(self) -> None:
        self._blocks: dict[BlockHash, DeviceBlock] = {}
        self._by_node: dict[NodeId, dict[BlockHash, None]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, block_hash: BlockHash) -> DeviceBlock | None:
        return self._blocks.get(block_hash)

    def num_on(self, node: NodeId) -> int:
        return len(self._by_node.get(node, ()))

    def nodes_of(self, block_hash: BlockHash) -> list[NodeId]:
        block = self._blocks.get(block_hash)
        return sorted(block.nodes) if block is not None else []

    def record_sealed(self, node: NodeId, sealed: SealedBlocks, *, now_s: float) -> SealedBlocks:
        """All or nothing: ProtocolError for a malformed record, or too many. Returns those that are new there."""
        check_sealed(sealed)
        held = self._by_node.setdefault(node, {})
        if len(held) + len(sealed) > MAX_BLOCKS and (
            len(held.keys() | set(sealed.hashes())) > MAX_BLOCKS
        ):
            raise ProtocolError(
                f"instance {node} holds more than {MAX_BLOCKS} blocks in its KV arena; lower prefill.retain_fraction"
            )
        with_node, fresh = _Sharing(lambda nodes: nodes | {node}), []
        for index, each in enumerate(sealed):
            key = each.meta.hash
            if key in held:
                continue
            held[key] = None
            fresh.append(index)
            block = self._blocks.get(key)
            if block is None:
                made_s = now_s - each.age_ms / 1000
                nodes = with_node.of(_NOBODY)
                self._blocks[key] = DeviceBlock(each.meta, each.length, made_s, nodes)
            else:
                block.nodes = with_node.of(block.nodes)
        return sealed if len(fresh) == len(sealed) else sealed.part(fresh)

    def record_freed(self, node: NodeId, hashes: Iterable[BlockHash]) -> list[BlockHash]:
        """Returns those that it held."""
        held = self._by_node.get(node, {})
        without, freed = _Sharing(lambda nodes: nodes - {node}), []
        for key in hashes:
            if key not in held:
                continue
            del held[key]
            freed.append(key)
            block = self._blocks[key]
            block.nodes = without.of(block.nodes)
            if not block.nodes:
                del self._blocks[key]
        return freed

    def drop_node(self, node: NodeId) -> list[BlockHash]:
        """It holds nothing any more, as far as is known; what it did. Fine for an unknown one."""
        freed = self.record_freed(node, list(self._by_node.get(node, ())))
        self._by_node.pop(node, None)
        return freed

    def leading(self, hashes: Sequence[BlockHash]) -> dict[NodeId, int]:
        """How many of the first blocks of a chain each instance holds; only those with any."""
        first = self._blocks.get(hashes[0]) if hashes else None
        if first is None:
            return {}
        counts: dict[NodeId, int] = {}
        there = first.nodes
        for index, key in enumerate(hashes):
            block = self._blocks.get(key)
            nodes = block.nodes if block is not None else _NOBODY
            if nodes is there:
                continue
            counts |= dict.fromkeys(there - nodes, index)
            there &= nodes
            if not there:
                return counts
        return counts | dict.fromkeys(there, len(hashes))

    def select(self, wanted: BlockFilter, *, now_s: float) -> list[BlockHash]:
        """Blocks that match."""
        prefix = (wanted.hash_prefix or "").lower()
        chosen = None if wanted.hashes is None else set(wanted.hashes)
        names = self._blocks if wanted.node is None else self._by_node.get(wanted.node, {})
        return [
            key
            for key in names
            if (chosen is None or key in chosen)
            and (not prefix or key.hex().startswith(prefix))
            and self._matches(self._blocks[key], wanted, now_s)
        ]

    def holders(self, wanted: BlockFilter, *, now_s: float) -> dict[NodeId, list[BlockHash]]:
        """What each instance holds of the blocks that match; with `wanted.node`, that one only."""
        found: dict[NodeId, list[BlockHash]] = {}
        for key in self.select(wanted, now_s=now_s):
            for node in self._blocks[key].nodes:
                if wanted.node in (None, node):
                    found.setdefault(node, []).append(key)
        return found

    def check_invariants(self) -> None:
        """For tests."""
        for node, held in self._by_node.items():
            assert all(node in self._blocks[key].nodes for key in held)
        for key, block in self._blocks.items():
            assert block.nodes
            assert all(key in self._by_node[node] for node in block.nodes)

    def _matches(self, block: DeviceBlock, wanted: BlockFilter, now_s: float) -> bool:
        meta = block.meta
        return (
            wanted.model in (None, meta.model)
            and wanted.tenant in (None, meta.tenant)
            and (wanted.older_than_s is None or now_s - block.made_s > wanted.older_than_s)
        )


class _Sharing:
    """Makes sets from sets, one object from each."""

    def __init__(self, change: Callable[[Nodes], Nodes]) -> None:
        self._change = change
        self._made: dict[Nodes, Nodes] = {}

    def of(self, nodes: Nodes) -> Nodes:
        made = self._made.get(nodes)
        if made is None:
            made = self._made[nodes] = self._change(nodes)
        return made
