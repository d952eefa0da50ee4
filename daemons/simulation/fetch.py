"""From where the reused KV of a prompt comes to its prefill node, and when it is all there.

Reading begins when the request is placed, so what its queue takes is free: from SSDs and the object store as from other
nodes' DRAM over the network.
"""

from collections import Counter
from dataclasses import dataclass

from daemons.core.ids import NodeId
from daemons.protocol.packed import BlockPlace
from daemons.simulation.network import Network
from daemons.simulation.pool import SimulatedPool
from daemons.simulation.trace import BLOCK_TOKENS
from daemons.store.directory.columns import Rows
from daemons.store.directory.slot_table import Place


@dataclass(frozen=True, slots=True)
class Fetched:
    """Blocks that were not in the node's DRAM, by their place in the prefix."""

    ready_s: float
    remote: tuple[int, ...]
    """From other nodes' DRAM."""
    ssd: tuple[int, ...]
    """From any node's."""
    object: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlowPart:
    """`fast_tokens`: as far as all of a prefix is in DRAM; the rest is staged in `staging_s`."""

    fast_tokens: int
    staging_s: float


class Fetcher:
    """One cluster's."""

    def __init__(self, pool: SimulatedPool, network: Network, block_bytes: int) -> None:
        self._pool = pool
        self._network = network
        self._block_bytes = block_bytes

    def fetch(
        self, rows: Rows, num_asked: int, node: NodeId, *, num_held: int = 0, now_s: float
    ) -> Fetched:
        """Begin to bring the blocks of these rows to this node, except the first ones that its devices hold."""
        found = self._pool.take(rows, num_asked, node, now_s)
        far = [
            (depth, at)
            for depth, at in enumerate(found)
            if depth >= num_held and not _is_here(at, node)
        ]
        ready_s = now_s
        for place, num_blocks in sorted(Counter(_place(at) for _, at in far).items()):
            ready_s = max(ready_s, self._bring(place, num_blocks * self._block_bytes, node, now_s))
        remote, ssd, below = (
            tuple(depth for depth, at in far if at.tier == tier)
            for tier in ("dram", "ssd", "object")
        )
        return Fetched(ready_s, remote, ssd, below)

    def slow_part(self, rows: Rows, *, now_s: float) -> SlowPart:
        """Only looks. What other requests have asked the devices for before counts."""
        lower = self._pool.lower
        if lower is None or not len(rows):
            return SlowPart(len(rows) * BLOCK_TOKENS, 0.0)
        places = self._pool.directory.best_places(rows, now_s=now_s)
        is_slow = [place[1] != "dram" for place in places]
        num_fast = is_slow.index(True) if any(is_slow) else len(rows)
        staging_s = 0.0
        for place, num_blocks in Counter(p for p in places if p[1] != "dram").items():
            num_bytes = num_blocks * self._block_bytes
            end_s = lower.devices[place].read_end_s(num_bytes, now_s=now_s)
            staging_s = max(staging_s, end_s - now_s)
        return SlowPart(num_fast * BLOCK_TOKENS, staging_s)

    def _bring(self, place: Place, num_bytes: int, target: NodeId, now_s: float) -> float:
        """What a device reads goes out as it comes, so the slower of device and network counts."""
        node, tier = place
        end_s = now_s
        if tier != "dram":
            assert self._pool.lower is not None
            end_s = self._pool.lower.devices[place].read(num_bytes, now_s=now_s)
        if node == target:
            return end_s
        return max(end_s, self._network.send(node, target, num_bytes, now_s=now_s))


def _is_here(location: BlockPlace, node: NodeId) -> bool:
    return location.node == node and location.tier == "dram"


def _place(location: BlockPlace) -> Place:
    return location.node, location.tier
