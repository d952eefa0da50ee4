"""The pool of a simulated cluster: the live directory, eviction and promotion, over memory that is only counted."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import Tier
from daemons.protocol.packed import HASH_TYPE, SEALED, BlockKind, BlockPlace, SealedBlocks
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.simulation.lower_tiers import Device, LowerSizes, LowerTiers, sealed_of
from daemons.simulation.trace import BLOCK_TOKENS
from daemons.store.directory.columns import Rows
from daemons.store.directory.directory import Directory
from daemons.store.eviction.policies import POLICIES
from daemons.store.promotion import Promotion

EVICTION_NAMES = tuple(POLICIES)
HIGH_WATERMARK = 0.95
EVICT_FRACTION = 0.05
LEASE_S = 5.0
PROMOTE_USES = 2
"""A block from a lower tier stays in a full DRAM from its second use on, as mc-cachenode has it."""
MODEL = "simulated"
_ROOT = BlockHash(b"\xff" * HASH_BYTES)
"""No block's: those of a trace count up from 0."""
_KIND = BlockKind(namespace=b"simulated", model=MODEL)


def block_hash(block: int) -> BlockHash:
    """A trace's ids are small numbers; the directory wants hashes."""
    return BlockHash(block.to_bytes(HASH_BYTES, "big"))


class _Hashes(dict[int, BlockHash]):
    """`block_hash` of each block that was asked for, one object each: dicts compare those without a look inside."""

    def __missing__(self, block: int) -> BlockHash:
        self[block] = found = block_hash(block)
        return found


class SimulatedPool:
    """Each node lends `node_tokens` of memory. `lower` is set where there are tiers below it."""

    def __init__(self, nodes: Sequence[NodeId], node_tokens: int, policy: str = "lru") -> None:
        self.directory = Directory(POLICIES[policy])
        self.num_evicted = 0
        self.lower: LowerTiers | None = None
        self._promotion = Promotion(PROMOTE_USES)
        self._hashes = _Hashes()
        self.capacity_blocks = max(1, node_tokens // BLOCK_TOKENS)
        self.used_blocks = dict.fromkeys(nodes, 0)
        for node in nodes:
            self.directory.add_node(node, HostId(node), _region())

    def add_lower(self, sizes: LowerSizes, device_of: Callable[[Tier], Device]) -> None:
        """Before anything is stored."""
        if sizes.ssd_blocks or sizes.object_blocks:
            self.lower = LowerTiers(self.directory, list(self.used_blocks), sizes, device_of)

    def hashes(self, blocks: Sequence[int]) -> list[BlockHash]:
        return list(map(self._hashes.__getitem__, blocks))

    def store(self, node: NodeId, blocks: Sequence[int], first: int, *, now_s: float) -> None:
        """Blocks [first, end) of a prompt are in the node's memory from now on; older ones make room."""
        self.store_some(node, blocks, range(first, len(blocks)), now_s=now_s)

    def store_some(
        self, node: NodeId, blocks: Sequence[int], depths: Sequence[int], *, now_s: float
    ) -> None:
        """Those at these depths."""
        # In parts that a full node can hold beside what it evicts for them.
        size = max(1, int(self.capacity_blocks * EVICT_FRACTION))
        for start in range(0, len(depths), size):
            part = depths[start : start + size]
            self._make_room(node, len(part), now_s)
            if self.used_blocks[node] + len(part) > self.capacity_blocks:
                return  # all that is left is leased
            sealed = _sealed(blocks, part)
            self.used_blocks[node] += len(self.directory.record_sealed(node, sealed, now_s=now_s))

    def promote(
        self, node: NodeId, blocks: Sequence[int], depths: Sequence[int], *, now_s: float
    ) -> None:
        """These were read from lower tiers for a request; the often used ones stay."""
        has_room = self.used_blocks[node] + len(depths) <= HIGH_WATERMARK * self.capacity_blocks
        kept = []
        for depth in depths:
            name = self._hashes[blocks[depth]]
            self._promotion.use(name)
            if self._promotion.admits(name, has_room=has_room):
                kept.append(depth)
        self.store_some(node, blocks, kept, now_s=now_s)

    def holders(self, block_hash: BlockHash) -> list[NodeId]:
        """Whose memory it is in."""
        row = self.directory.blocks.row_by_hash.get(block_hash)
        if row is None:
            return []
        nodes = self.directory.nodes_of(row)
        return sorted(n for n in nodes if self.directory.length_on((n, "dram"), block_hash))

    def drop(self, node: NodeId, block_hash: BlockHash, *, now_s: float) -> bool:
        """Free one replica; False where it is leased."""
        given = self.directory.give_up(node, [block_hash], now_s=now_s)
        self.used_blocks[node] -= len(self.directory.record_freed(node, given))
        return bool(given)

    def take(self, rows: Rows, num_asked: int, near: NodeId, now_s: float) -> list[BlockPlace]:
        """Where to read each block of a prefix from, leased while it is read."""
        taken = self.directory.take(
            rows, num_asked, now_s=now_s, lease_s=LEASE_S, near=HostId(near)
        )
        numbers = self.directory.replicas.slot.values[taken.replicas].tolist()
        return [taken.locations.places[number] for number in numbers]

    def _make_room(self, node: NodeId, num_blocks: int, now_s: float) -> None:
        limit = HIGH_WATERMARK * self.capacity_blocks
        if self.used_blocks[node] + num_blocks <= limit:
            return
        wanted = num_blocks + int(EVICT_FRACTION * self.capacity_blocks)
        victims = self.directory.victims(node, wanted, now_s=now_s)
        if self.lower is not None:
            self.lower.demote(node, sealed_of(self.directory, victims), now_s=now_s)
        freed = self.directory.record_freed(node, victims)
        self.used_blocks[node] -= len(freed)
        self.num_evicted += len(freed)


def _sealed(blocks: Sequence[int], depths: Sequence[int]) -> SealedBlocks:
    """Every block counts as one byte: only their number matters."""
    depth = np.array(depths, np.int64)
    ids = np.array(blocks, np.int64)
    records = np.zeros(len(depth), SEALED)
    location = records["location"]
    location["hash"] = _hash_column(ids[depth])
    location["length"] = location["version"] = location["num_layers"] = 1
    records["parent"] = _hash_column(ids[depth - 1])
    records["parent"][depth == 0] = np.void(_ROOT)
    records["depth"] = depth
    records["num_tokens"] = BLOCK_TOKENS
    return SealedBlocks(rows=records.tobytes(), kinds=[_KIND])


def _hash_column(ids: NDArray[np.int64]) -> NDArray[np.void]:
    """What `block_hash` makes of each."""
    halves = np.zeros((len(ids), HASH_BYTES // 8), ">u8")
    halves[:, -1] = ids
    column: NDArray[np.void] = halves.view(HASH_TYPE)[:, 0]
    return column


def _region() -> RegionRef:
    address = DataAddress(host_id=HostId(""), unix_path="", tcp="", epoch=Epoch(0))
    return RegionRef(address=address, region_id=0, size_bytes=0)
