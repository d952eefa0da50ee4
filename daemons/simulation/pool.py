"""The pool of a simulated cluster: the live directory and its eviction, over memory that is only counted."""

from collections.abc import Sequence

from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockLocation, BlockMeta, SealedBlock
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.simulation.trace import BLOCK_TOKENS
from daemons.store.directory import Directory
from daemons.store.eviction import POLICIES

EVICTION_NAMES = tuple(POLICIES)
HIGH_WATERMARK = 0.95
EVICT_FRACTION = 0.05
LEASE_S = 5.0
MODEL = "simulated"
_ROOT = BlockHash(bytes(HASH_BYTES))
_NAMESPACE = b"simulated"


def block_hash(block: int) -> BlockHash:
    """A trace's ids are small numbers; the directory wants hashes."""
    return BlockHash(block.to_bytes(HASH_BYTES, "big"))


class SimulatedPool:
    """Each node lends `node_tokens` of memory."""

    def __init__(self, nodes: Sequence[NodeId], node_tokens: int, policy: str = "lru") -> None:
        self.directory = Directory(POLICIES[policy])
        self.num_evicted = 0
        self._capacity_blocks = max(1, node_tokens // BLOCK_TOKENS)
        self._used_blocks = dict.fromkeys(nodes, 0)
        for node in nodes:
            self.directory.add_node(node, HostId(node), _region())

    def hashes(self, blocks: Sequence[int]) -> list[BlockHash]:
        return [block_hash(block) for block in blocks]

    def store(self, node: NodeId, blocks: Sequence[int], first: int, *, now_s: float) -> None:
        """Blocks [first, end) of a prompt are in the node's memory from now on; older ones make room."""
        sealed = [self._sealed(blocks, depth) for depth in range(first, len(blocks))]
        # In parts that a full node can hold beside what it evicts for them.
        size = max(1, int(self._capacity_blocks * EVICT_FRACTION))
        for start in range(0, len(sealed), size):
            part = sealed[start : start + size]
            self._make_room(node, len(part), now_s)
            if self._used_blocks[node] + len(part) > self._capacity_blocks:
                return  # all that is left is leased
            self._used_blocks[node] += len(self.directory.record_sealed(node, part, now_s=now_s))

    def take(
        self, rows: Sequence[int], num_asked: int, near: NodeId, now_s: float
    ) -> list[BlockLocation]:
        """Where to read a prefix from, leased while it is read."""
        return self.directory.take(rows, num_asked, now_s=now_s, lease_s=LEASE_S, near=HostId(near))

    def _make_room(self, node: NodeId, num_blocks: int, now_s: float) -> None:
        limit = HIGH_WATERMARK * self._capacity_blocks
        if self._used_blocks[node] + num_blocks <= limit:
            return
        wanted = num_blocks + int(EVICT_FRACTION * self._capacity_blocks)
        victims = self.directory.victims(node, wanted, now_s=now_s)
        freed = self.directory.record_freed(node, victims)
        self._used_blocks[node] -= len(freed)
        self.num_evicted += len(freed)

    def _sealed(self, blocks: Sequence[int], depth: int) -> SealedBlock:
        """Every block counts as one byte: only their number matters."""
        meta = BlockMeta(
            hash=block_hash(blocks[depth]),
            parent=block_hash(blocks[depth - 1]) if depth else _ROOT,
            namespace=_NAMESPACE,
            depth=depth,
            num_tokens=BLOCK_TOKENS,
            model=MODEL,
        )
        return SealedBlock(
            meta=meta, offset=0, length=1, trailer_bytes=0, version=1, seal_checksum=0, num_layers=1
        )


def _region() -> RegionRef:
    address = DataAddress(host_id=HostId(""), unix_path="", tcp="", epoch=Epoch(0))
    return RegionRef(address=address, region_id=0, size_bytes=0)
