"""Copies between cache nodes as the master has them made: where a block is, what is ordered and not reported yet.

What is to be copied is others' to decide; here it is bounded, sent, and given up when nobody speaks of it again.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from daemons.conductor.membership import Member
from daemons.conductor.replication import BlockCopies, CopyBudget, CopyNode
from daemons.config.common import size_bytes
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.state import MasterState
from daemons.protocol.block import BlockLocation, FreeBlocks
from daemons.protocol.replication import CopyBlocks, CopyFailed, CopyOrder
from daemons.service.bounded_log import BOUNDED

log = logging.getLogger(__name__)

MAX_WAITING: Final = 100_000

_PAUSE_S: Final = 1.0
"""A node that failed is asked for nothing so long."""

_FIRST_REST_S: Final = 0.5
_LAST_REST_S: Final = 60.0
"""What failed once may fail for long: no room for its size, a source that cannot be reached."""
_LEAVES_S: Final = 60.0
"""Longer than a node that lives takes to free what it is told to."""


@dataclass(slots=True)
class Away:
    """A node that may be back: until then, what it held counts as there."""

    until_s: float
    domain: str


class Copies:
    """Loop thread only."""

    def __init__(self, state: MasterState) -> None:
        self.budget = CopyBudget(1, 1)
        self.away: dict[NodeId, Away] = {}
        self._state = state
        self._orders: dict[NodeId, list[CopyOrder]] = {}
        self._resting: dict[BlockHash, tuple[float, float]] = {}
        """Blocks that could not be copied: until when they are left alone, and for how long next time."""
        self._leaving: dict[BlockHash, dict[NodeId, float]] = {}
        """Nodes that were told to free it, which they have not reported: until when it does not count as there."""
        self.reload()

    def reload(self) -> None:
        """The limits, from the config as it is now."""
        pool = self._state.config.pool
        self.budget.max_in_flight_bytes = size_bytes(pool.copy_in_flight, "pool.copy_in_flight")
        self.budget.bytes_per_s = size_bytes(pool.copy_rate, "pool.copy_rate")

    def nodes(self) -> dict[NodeId, CopyNode]:
        return {
            member.node.node: CopyNode(
                node=member.node.node,
                domain=domain_of(member),
                is_staying=not member.is_draining,
                can_take=member.state == "alive" and not member.is_draining,
                used_bytes=member.used_bytes,
                capacity_bytes=member.capacity_bytes,
            )
            for member in self._state.membership
            if member.node.segments and member.state != "dead"
        }

    def look(self, block_hash: BlockHash) -> tuple[BlockCopies | None, list[BlockLocation]]:
        """Where it is, and where it can be copied from: DRAM, of nodes that answer where there are any.

        Only what no DRAM has is taken from below, where a node that answers stages it.
        """
        state = self._state
        directory = state.directory
        [found] = directory.locate([block_hash], now_s=state.now_s(), lease_s=0).unpack()
        leaving = self._leaving.get(block_hash) if self._leaving else None
        if leaving:
            # What two decisions take from two nodes would be gone; where nobody else has it, it did not go.
            found = [at for at in found if at.node not in leaving] or found
        if not found:
            return None, []
        kept = directory.kept_nodes(block_hash) if self.away else set()
        block = BlockCopies(
            hash=block_hash,
            num_bytes=found[0].length + found[0].trailer_bytes,
            wanted=directory.replicas_for(block_hash, state.config.pool.replicas),
            holders=tuple(dict.fromkeys(at.node for at in found)),
            away=frozenset(self.away[node].domain for node in kept if node in self.away)
            | self._safe_objects(found),
        )
        answering = [at for at in found if _state_of(state, at.node) == "alive"]
        sources = (
            [at for at in answering if at.tier == "dram"]
            or [at for at in found if at.tier == "dram"]
            or [at for at in answering if at.tier == found[0].tier]
        )
        return block, sources

    def is_object_shared(self) -> bool:
        """Whether a node that stays could read the object tier of another that is out."""
        return any(
            member.state == "alive" and not member.is_draining and "object" in member.tiers
            for member in self._state.membership
        )

    def _safe_objects(self, found: Sequence[BlockLocation]) -> frozenset[str]:
        """Domains of draining nodes whose object tier has it, for others to read."""
        holders = [self._state.membership.get(at.node) for at in found if at.tier == "object"]
        draining = [member for member in holders if member is not None and member.is_draining]
        if not draining or not self.is_object_shared():
            return frozenset()
        return frozenset(domain_of(member) for member in draining)

    def order(
        self,
        block: BlockCopies,
        sources: Sequence[BlockLocation],
        target: NodeId,
        *,
        is_paced: bool,
    ) -> None:
        """Goes out with the next `send`."""
        state = self._state
        now_s = state.now_s()
        row = state.directory.blocks.row_by_hash[block.hash]
        # Readers spread over the sources as the hashes do.
        source = sources[block.hash[-1] % len(sources)]
        created_s = state.directory.blocks.created_s.values.item(row)
        self._orders.setdefault(target, []).append(
            CopyOrder(
                meta=state.directory.blocks.meta_of(row),
                source=source,
                age_ms=int(1000 * max(0.0, now_s - created_s)),
                wanted=state.directory.wanted_of(block.hash),
            )
        )
        self.budget.start(block.hash, target, block.num_bytes, is_paced=is_paced, now_s=now_s)

    def send(self) -> None:
        orders, self._orders = self._orders, {}
        for target, copies in orders.items():
            member = self._state.membership.get(target)
            if member is not None and self._state.out.notify(member, CopyBlocks(copies=copies)):
                self._state.metrics.copies.labels("ordered").inc(len(copies))
                continue
            for order in copies:
                self.budget.end(order.meta.hash, target)
            self.budget.pause(target, self._state.now_s() + _PAUSE_S)

    def free(self, node: NodeId, hashes: list[BlockHash]) -> None:
        """In DRAM: what goes may be written down."""
        member = self._state.membership.get(node)
        if member is not None and hashes:
            self._leave(node, hashes)
            self._state.out.notify(member, FreeBlocks(hashes=hashes))

    def delete(self, node: NodeId, hashes: list[BlockHash]) -> None:
        """In all its tiers."""
        member = self._state.membership.get(node)
        if member is not None and hashes:
            self._leave(node, hashes)
            self._state.out.notify(member, FreeBlocks(hashes=hashes, is_deletion=True))

    def _leave(self, node: NodeId, hashes: Sequence[BlockHash]) -> None:
        until_s = self._state.now_s() + _LEAVES_S
        for block_hash in hashes:
            if len(self._leaving) >= MAX_WAITING:
                del self._leaving[next(iter(self._leaving))]
            self._leaving.setdefault(block_hash, {})[node] = until_s

    @property
    def is_removing(self) -> bool:
        return bool(self._leaving)

    def is_back(self, hashes: Sequence[BlockHash], node: NodeId) -> None:
        """Reported as sealed there: it was put again, or has another version."""
        for block_hash in hashes:
            self._leaving.get(block_hash, {}).pop(node, None)

    def sealed(self, hashes: Sequence[BlockHash], node: NodeId) -> None:
        for block_hash in self.budget.among(hashes):
            if self.budget.end(block_hash, node):
                self._resting.pop(block_hash, None)

    def failed(self, message: CopyFailed) -> list[BlockHash]:
        """Those of them that were ordered; others are asked for a moment, and the block has a rest."""
        state = self._state
        ended = [h for h in message.hashes if self.budget.end(h, message.node)]
        if ended:
            state.metrics.copies.labels("failed").inc(len(ended))
            self.budget.pause(message.node, state.now_s() + _PAUSE_S)
            why = message.why[:200]
            log.info(
                "copies failed node=%s num=%d why=%r", message.node, len(ended), why, extra=BOUNDED
            )
        for block_hash in ended:
            self._rest(block_hash)
        return ended

    def expire(self) -> None:
        now_s = self._state.now_s()
        while self._leaving:
            block_hash, until_s = next(iter(self._leaving.items()))
            if any(each > now_s for each in until_s.values()):
                break
            del self._leaving[block_hash]
        late = self.budget.expire(self._state.now_s())
        if late:
            self._state.metrics.copies.labels("lost").inc(late)

    def awake(self, hashes: Sequence[BlockHash]) -> list[BlockHash]:
        """Without those that have a rest."""
        if not self._resting:
            return list(hashes)
        now_s = self._state.now_s()
        return [h for h in hashes if self._resting.get(h, (0.0, 0.0))[0] <= now_s]

    def _rest(self, block_hash: BlockHash) -> None:
        _, pause_s = self._resting.pop(block_hash, (0.0, _FIRST_REST_S))
        if len(self._resting) >= MAX_WAITING:
            del self._resting[next(iter(self._resting))]
        longer_s = min(2 * pause_s, _LAST_REST_S)
        self._resting[block_hash] = (self._state.now_s() + pause_s, longer_s)


def domain_of(member: Member) -> str:
    """What the node shares the fate of."""
    return member.node.domain or member.node.host_id


def _state_of(state: MasterState, node: NodeId) -> str:
    member = state.membership.get(node)
    return "dead" if member is None else member.state
