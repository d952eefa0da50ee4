"""Where further replicas of a block go, from where, which one is too many, and how fast copies may be made. Pure.

Replicas go to distinct domains (hosts, unless nodes say what else they share the fate of), to any node with room. What
is made anew after a loss is paced for each target; a new block's second copy is only bounded in flight.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from daemons.core.ids import BlockHash, NodeId

FULL_FOR_REPAIR: Final = 0.05
"""So far below the low watermark a node must be to get what was lost: else it would evict it again at once."""

SPREAD_FROM: Final = 0.2
"""So much less of its memory another node must have in use for cold blocks to go there."""

COPY_DEADLINE_S: Final = 15.0
"""A copy that is neither reported nor failed by then is taken for lost."""

MAX_UNDER_WAY: Final = 20_000
_MIN_BURST_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class CopyNode:
    """A cache node as far as copies go. A suspect one stays, but gets nothing; a draining one does not stay."""

    node: NodeId
    domain: str
    is_staying: bool
    can_take: bool
    used_bytes: int
    capacity_bytes: int

    @property
    def used_share(self) -> float:
        return self.used_bytes / self.capacity_bytes if self.capacity_bytes else 1.0


@dataclass(frozen=True, slots=True)
class BlockCopies:
    """Where a block is: `holders` can be read.

    `away` are domains that count though their nodes do not stay: back soon, or read by others from the object store.
    """

    hash: BlockHash
    num_bytes: int
    wanted: int
    holders: tuple[NodeId, ...]
    away: frozenset[str] = frozenset()


def num_missing(block: BlockCopies, nodes: Mapping[NodeId, CopyNode]) -> int:
    """Copies to be made so that the block is in as many domains as it should, or as there are."""
    there = _domains(block, nodes) | block.away
    possible = {node.domain for node in nodes.values() if node.can_take} | there
    return max(0, min(block.wanted, len(possible)) - len(there))


def choose_target(
    block: BlockCopies,
    nodes: Mapping[NodeId, CopyNode],
    *,
    full: float,
    prefer: Sequence[NodeId] = (),
    busy: Collection[NodeId] = (),
) -> NodeId | None:
    """A node that can take it in a domain without the block, used below `full`; preferred ones first.

    The others come in equal shares. A domain where only a draining node has it will do, too. None: nobody has room, or
    all are `busy`.
    """
    taken = _domains(block, nodes) | block.away
    usable = [
        node
        for node in nodes.values()
        if node.can_take
        and node.domain not in taken
        and node.node not in block.holders
        and node.node not in busy
        and node.used_bytes + block.num_bytes <= full * node.capacity_bytes
    ]
    if not usable:
        return None
    order = {node: index for index, node in enumerate(prefer)}

    def rank(node: CopyNode) -> tuple[int, bytes]:
        # Not the emptiest: a node that has just joined gets its share of copies, and not all.
        chance = blake2b(block.hash + node.node.encode(), digest_size=8).digest()
        return order.get(node.node, len(order)), chance

    return min(usable, key=rank).node


def choose_surplus(block: BlockCopies, nodes: Mapping[NodeId, CopyNode]) -> NodeId | None:
    """The holder to free: of a domain with two, else the fullest; None while the block has no more than it should."""
    held = [nodes[holder] for holder in block.holders if holder in nodes]
    counted = [node for node in held if node.can_take]
    domains = [node.domain for node in counted]
    doubled = [node for node in counted if domains.count(node.domain) > 1]
    if doubled and len(counted) > block.wanted:
        return max(doubled, key=lambda node: (node.used_share, node.node)).node
    if len(set(domains)) <= block.wanted:
        return None
    return max(counted, key=lambda node: (node.used_share, node.node)).node


@dataclass(frozen=True, slots=True)
class Spread:
    """Cold blocks of so many bytes go from one node to another."""

    source: NodeId
    target: NodeId
    num_bytes: int


def choose_spread(nodes: Mapping[NodeId, CopyNode], *, full: float) -> Spread | None:
    """From the fullest node to the emptiest, where the one is about to evict and the other has room.

    Half of what would make them equal, so that others' puts do not turn it back.
    """
    usable = [node for node in nodes.values() if node.can_take and node.capacity_bytes]
    if len(usable) < 2:
        return None
    fullest = max(usable, key=lambda node: (node.used_share, node.node))
    emptiest = min(usable, key=lambda node: (node.used_share, node.node))
    if fullest.used_share < full - FULL_FOR_REPAIR:
        return None
    if fullest.used_share - emptiest.used_share < SPREAD_FROM:
        return None
    smaller = min(fullest.capacity_bytes, emptiest.capacity_bytes)
    num_bytes = int((fullest.used_share - emptiest.used_share) / 4 * smaller)
    return Spread(fullest.node, emptiest.node, num_bytes)


def _domains(block: BlockCopies, nodes: Mapping[NodeId, CopyNode]) -> set[str]:
    """Where it is and stays: a draining or dead node's replica does not count."""
    return {
        nodes[holder].domain
        for holder in block.holders
        if holder in nodes and nodes[holder].is_staying
    }


@dataclass(slots=True)
class _Target:
    in_flight_bytes: int = 0
    tokens: float = 0.0
    filled_s: float = 0.0
    paused_until_s: float = 0.0


@dataclass(slots=True)
class CopyBudget:
    """What is being copied, and what more may be: bounded bytes in flight at each target, repairs at a bounded rate."""

    max_in_flight_bytes: int
    bytes_per_s: int
    _targets: dict[NodeId, _Target] = field(default_factory=dict)
    _under_way: dict[tuple[BlockHash, NodeId], tuple[float, int]] = field(default_factory=dict)
    _num_by_hash: dict[BlockHash, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._under_way)

    def num_of(self, block_hash: BlockHash) -> int:
        """Copies of this block that are under way."""
        return self._num_by_hash.get(block_hash, 0)

    def among(self, hashes: Sequence[BlockHash]) -> list[BlockHash]:
        """Those of these that are being copied."""
        return list(filter(self._num_by_hash.__contains__, hashes)) if self._num_by_hash else []

    def targets_of(self, block_hash: BlockHash, among: Collection[NodeId]) -> set[NodeId]:
        """Those of these nodes that are copying the block now."""
        if block_hash not in self._num_by_hash:
            return set()
        return {node for node in among if (block_hash, node) in self._under_way}

    def may_start(self, target: NodeId, num_bytes: int, *, is_paced: bool, now_s: float) -> bool:
        """One block is always let through where nothing else is under way, however large."""
        if len(self._under_way) >= MAX_UNDER_WAY:
            return False
        at = self._targets.setdefault(target, _Target(filled_s=now_s))
        if now_s < at.paused_until_s:
            return False
        if at.in_flight_bytes and at.in_flight_bytes + num_bytes > self.max_in_flight_bytes:
            return False
        if not is_paced:
            return True
        burst = max(self.bytes_per_s * _MIN_BURST_S, 1.0)
        at.tokens = min(burst, at.tokens + self.bytes_per_s * (now_s - at.filled_s))
        at.filled_s = now_s
        return at.tokens > 0

    def in_flight_to(self, target: NodeId) -> int:
        """Bytes that it does not count as used yet."""
        at = self._targets.get(target)
        return 0 if at is None else at.in_flight_bytes

    def start(
        self, block_hash: BlockHash, target: NodeId, num_bytes: int, *, is_paced: bool, now_s: float
    ) -> None:
        at = self._targets.setdefault(target, _Target(filled_s=now_s))
        at.in_flight_bytes += num_bytes
        if is_paced:
            at.tokens -= num_bytes
        self._under_way[block_hash, target] = (now_s + COPY_DEADLINE_S, num_bytes)
        self._num_by_hash[block_hash] = self._num_by_hash.get(block_hash, 0) + 1

    def end(self, block_hash: BlockHash, target: NodeId) -> bool:
        """Sealed, failed or given up; False when it was not under way."""
        found = self._under_way.pop((block_hash, target), None)
        if found is None:
            return False
        at = self._targets.get(target)
        if at is not None:
            at.in_flight_bytes -= found[1]
        self._num_by_hash[block_hash] -= 1
        if self._num_by_hash[block_hash] == 0:
            del self._num_by_hash[block_hash]
        return True

    def pause(self, target: NodeId, until_s: float) -> None:
        """It failed: others are asked until then."""
        self._targets.setdefault(target, _Target()).paused_until_s = until_s

    def forget(self, target: NodeId) -> None:
        """It is gone, with all it was asked for."""
        for block_hash, node in [key for key in self._under_way if key[1] == target]:
            self.end(block_hash, node)
        self._targets.pop(target, None)

    def expire(self, now_s: float) -> int:
        """How many were taken for lost."""
        late = []
        for key, (deadline_s, _) in self._under_way.items():
            if deadline_s > now_s:
                break  # they were started in the order of their deadlines
            late.append(key)
        for key in late:
            self.end(*key)
        return len(late)
