"""Further replicas: finds blocks that have too few or too many, and tells nodes to copy from peers, or to free.

A new block's copies are made at once, on the hint of the report that named it. What was lost with a node is found by
a look at the whole directory, once the node has been away for `rebuild_delay_s`; what a draining node holds, at once.
The rules are in conductor/replication.py; nothing here waits.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from daemons.conductor.membership import Member
from daemons.conductor.replication import (
    FULL_FOR_REPAIR,
    BlockCopies,
    CopyBudget,
    CopyNode,
    choose_surplus,
    choose_target,
    num_missing,
)
from daemons.config.common import size_bytes
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.state import MasterState
from daemons.protocol.block import BlockLocation, FreeBlocks, SealedBlock
from daemons.protocol.replication import CopyBlocks, CopyFailed, CopyOrder
from daemons.store.replica_counts import CountRules, ReplicaCounts, count_replicas

log = logging.getLogger(__name__)

MAX_WAITING: Final = 100_000
"""New blocks whose copies wait; those beyond are found by the next look."""

_SCAN_S: Final = 1.0
_SCAN_SHARE: Final = 20
"""Looks at the directory take one part in so many of the master's time, at most."""
_SCAN_BLOCKS: Final = 4096
_MAX_TRIES: Final = 512
"""Blocks weighed in one go."""
_PAUSE_S: Final = 1.0
_SETTLE_S: Final = 5.0
"""What a node that is back may take to announce its blocks."""
_DROP_AGAIN_S: Final = 5.0
_MAX_MOVE_TRIES: Final = 3


@dataclass(slots=True)
class _Away:
    """A node that may be back: until then, what it held counts as there."""

    until_s: float
    domain: str


@dataclass(slots=True)
class _Move:
    to: NodeId
    source: NodeId | None
    """Which replica goes afterwards; None: one of the others."""
    num_tries: int = 0


class Replicating:
    """Loop thread only."""

    def __init__(self, state: MasterState) -> None:
        pool = state.config.pool
        self._state = state
        self._budget = CopyBudget(
            size_bytes(pool.copy_in_flight, "pool.copy_in_flight"),
            size_bytes(pool.copy_rate, "pool.copy_rate"),
        )
        self._fresh: dict[BlockHash, tuple[NodeId, ...]] = {}
        """With the nodes to prefer."""
        self._repairs: dict[BlockHash, tuple[NodeId, ...]] = {}
        self._moves: dict[BlockHash, _Move] = {}
        self._dropping: dict[BlockHash, float] = {}
        """Surplus that was told to go, until when it is not looked at again."""
        self._away: dict[NodeId, _Away] = {}
        self._next_scan_s = 0.0
        self._orders: dict[NodeId, list[CopyOrder]] = {}

    @property
    def is_in_use(self) -> bool:
        """Whether any block should have more than one replica."""
        return self._state.config.pool.replicas > 1 or self._state.directory.blocks.num_wanted > 0

    @property
    def num_waiting(self) -> int:
        return len(self._fresh) + len(self._repairs) + len(self._moves)

    # -- what happens ------------------------------------------------------------------------------------------------

    def on_sealed(self, node: NodeId, sealed: Sequence[SealedBlock]) -> None:
        """Reported just now, and new on this node."""
        default = self._state.config.pool.replicas
        is_in_use = self.is_in_use
        if not is_in_use and not len(self._budget) and not self._moves:
            return
        for block in sealed:
            block_hash = block.meta.hash
            self._budget.end(block_hash, node)
            wanted = self._state.directory.wanted_of(block_hash) or default
            if wanted > 1 and block.age_ms < _SETTLE_S * 1000:
                self.ask(block_hash)

    def ask(self, block_hash: BlockHash, prefer: tuple[NodeId, ...] = ()) -> None:
        """Make what copies it lacks, as soon as nodes can take them."""
        if len(self._fresh) < MAX_WAITING:
            self._fresh[block_hash] = prefer

    def move(self, block_hash: BlockHash, to: NodeId, source: NodeId | None) -> bool:
        """False when too many wait."""
        if block_hash not in self._moves and len(self._moves) >= MAX_WAITING:
            return False
        self._moves.setdefault(block_hash, _Move(to, source)).to = to
        return True

    def on_failed(self, message: CopyFailed) -> None:
        """Others are asked for a moment; what still lacks copies is found by the next look."""
        state = self._state
        ended = [h for h in message.hashes if self._budget.end(h, message.node)]
        if not ended:
            return
        state.metrics.copies.labels("failed").inc(len(ended))
        self._budget.pause(message.node, state.now_s() + _PAUSE_S)
        log.info("copies failed node=%s num=%d why=%r", message.node, len(ended), message.why[:200])
        for block_hash in ended:
            move = self._moves.get(block_hash)
            if move is not None and move.num_tries >= _MAX_MOVE_TRIES:
                del self._moves[block_hash]

    def on_gone(self, member: Member) -> int:
        """Its blocks cannot be read any more; how many replicas those are. They count until it is given up."""
        state, node = self._state, member.node.node
        self._budget.forget(node)
        if not self.is_in_use:
            return state.directory.drop_node(node)
        until_s = state.now_s() + state.config.pool.rebuild_delay_s
        self._away[node] = _Away(until_s, domain_of(member))
        return state.directory.keep_away(node)

    def on_joined(self, node: NodeId) -> None:
        """Of a node that was away: it announces what it still has, which takes a moment."""
        away = self._away.get(node)
        if away is not None:
            away.until_s = self._state.now_s() + _SETTLE_S

    def count_left(self) -> None:
        """Of each draining node, what only it holds."""
        state = self._state
        counts = self._count(self._nodes(), limit=0)
        for member in state.membership:
            node = member.node.node
            is_known = member.next_sequence is not None and node in counts.left
            member.left = counts.left[node] if is_known else None

    def num_short(self, hashes: Iterable[BlockHash]) -> int:
        """How many of these have fewer replicas than they should and could."""
        counts = self._count(self._nodes(), limit=len(self._state.directory.blocks))
        return len(set(hashes) & {*counts.short, *counts.only_draining})

    def num_moving(self, hashes: Iterable[BlockHash]) -> int:
        return sum(block_hash in self._moves for block_hash in hashes)

    def num_domains(self) -> int:
        return len({node.domain for node in self._nodes().values() if node.can_take})

    # -- what is done about it ---------------------------------------------------------------------------------------

    def run_once(self) -> None:
        """A bounded piece; called often."""
        state = self._state
        now_s = state.now_s()
        late = self._budget.expire(now_s)
        if late:
            state.metrics.copies.labels("lost").inc(late)
        self._give_up_absent(now_s)
        is_draining = any(member.is_draining for member in state.membership)
        if (self.is_in_use or is_draining) and now_s >= self._next_scan_s:
            self._scan(now_s)
        if not self.num_waiting:
            return
        nodes = self._nodes()
        self._work_on_moves(nodes, now_s)
        pool = state.config.pool
        self._work_on(self._fresh, nodes, full=pool.high_watermark, is_paced=False)
        self._work_on(
            self._repairs, nodes, full=pool.low_watermark - FULL_FOR_REPAIR, is_paced=True
        )
        self._send()

    def _give_up_absent(self, now_s: float) -> None:
        for node, away in list(self._away.items()):
            if now_s >= away.until_s:
                log.info("node given up, or back node=%s", node)
                del self._away[node]
                self._state.directory.let_go(node)

    def _scan(self, now_s: float) -> None:
        state = self._state
        nodes = self._nodes()
        counts = self._count(nodes, limit=_SCAN_BLOCKS)
        for member in state.membership:
            is_known = member.next_sequence is not None and member.node.node in counts.left
            member.left = counts.left[member.node.node] if is_known else None
        self._repairs = dict.fromkeys(counts.only_draining, ())
        # A young master does not know who is missing: what looks lost may only not have been announced.
        if now_s >= state.started_s + state.config.pool.rebuild_delay_s:
            self._repairs |= dict.fromkeys(counts.short, ())
            self._drop_surplus(counts.surplus, nodes, now_s)
        state.metrics.short_blocks.set(len(counts.short) + len(counts.only_draining))
        took_s = state.now_s() - now_s
        self._next_scan_s = now_s + max(_SCAN_S, _SCAN_SHARE * took_s)

    def _count(self, nodes: dict[NodeId, CopyNode], *, limit: int) -> ReplicaCounts:
        domains = {node.node: node.domain for node in nodes.values()}
        possible = {node.domain for node in nodes.values() if node.can_take}
        for node_id, away in self._away.items():
            domains.setdefault(node_id, away.domain)
            possible.add(away.domain)
        rules = CountRules(
            domains=domains,
            num_domains=len(possible),
            draining=frozenset(n.node for n in nodes.values() if not n.is_staying),
            default=self._state.config.pool.replicas,
        )
        return count_replicas(self._state.directory, rules, limit=limit)

    def _drop_surplus(
        self, hashes: Sequence[BlockHash], nodes: dict[NodeId, CopyNode], now_s: float
    ) -> None:
        self._dropping = {h: until_s for h, until_s in self._dropping.items() if until_s > now_s}
        chosen: dict[NodeId, list[BlockHash]] = {}
        for block_hash in hashes:
            if block_hash in self._dropping or self._budget.num_of(block_hash):
                continue
            block, _ = self._look(block_hash)
            node = None if block is None else choose_surplus(block, nodes)
            if node is not None:
                chosen.setdefault(node, []).append(block_hash)
        for node, surplus in chosen.items():
            given = self._state.directory.give_up(node, surplus, now_s=now_s)
            self._dropping |= dict.fromkeys(given, now_s + _DROP_AGAIN_S)
            self._free(node, given)

    def _work_on(
        self,
        waiting: dict[BlockHash, tuple[NodeId, ...]],
        nodes: dict[NodeId, CopyNode],
        *,
        full: float,
        is_paced: bool,
    ) -> None:
        """From the front; what no node can take just now goes behind the others."""
        for _ in range(min(_MAX_TRIES, len(waiting))):
            block_hash = next(iter(waiting))
            prefer = waiting.pop(block_hash)
            if not self._copy(block_hash, nodes, prefer, full=full, is_paced=is_paced):
                waiting[block_hash] = prefer

    def _copy(
        self,
        block_hash: BlockHash,
        nodes: dict[NodeId, CopyNode],
        prefer: tuple[NodeId, ...],
        *,
        full: float,
        is_paced: bool,
    ) -> bool:
        """Order what it lacks; False when nodes with room are busy."""
        block, sources = self._look(block_hash)
        if block is None or not sources:
            return True
        # Those under way count as there.
        under_way = self._budget.targets_of(block_hash, nodes)
        block = replace(block, holders=(*block.holders, *under_way))
        now_s = self._state.now_s()
        for _ in range(num_missing(block, nodes)):
            busy = [
                node
                for node in nodes
                if not self._budget.may_start(node, block.num_bytes, is_paced=is_paced, now_s=now_s)
            ]
            target = choose_target(block, nodes, full=full, prefer=prefer, busy=busy)
            if target is None:
                # Without any room there is nothing to wait for: the next look finds it again.
                return choose_target(block, nodes, full=full, prefer=prefer) is None
            self._order(block, sources, target, is_paced=is_paced)
            block = replace(block, holders=(*block.holders, target))
        return True

    def _work_on_moves(self, nodes: dict[NodeId, CopyNode], now_s: float) -> None:
        freed: dict[NodeId, list[BlockHash]] = {}
        for block_hash in list(self._moves)[:_MAX_TRIES]:
            move = self._moves.pop(block_hash)
            block, sources = self._look(block_hash)
            if block is None or move.to not in nodes:
                continue
            if move.to in block.holders:
                others = [node for node in block.holders if node != move.to]
                source = move.source if move.source in others else next(iter(others), None)
                if source is not None and (move.source is None or source == move.source):
                    freed.setdefault(source, []).append(block_hash)
                continue
            self._moves[block_hash] = move
            if self._budget.num_of(block_hash) or not sources:
                continue
            if self._budget.may_start(move.to, block.num_bytes, is_paced=True, now_s=now_s):
                move.num_tries += 1
                self._order(block, sources, move.to, is_paced=True)
        for node, hashes in freed.items():
            self._free(node, hashes)

    def _order(
        self,
        block: BlockCopies,
        sources: Sequence[BlockLocation],
        target: NodeId,
        *,
        is_paced: bool,
    ) -> None:
        state = self._state
        now_s = state.now_s()
        row = state.directory.blocks.row_by_hash[block.hash]
        # Readers spread over the sources as the hashes do.
        source = sources[block.hash[-1] % len(sources)]
        created_s = state.directory.blocks.created_s[row]
        self._orders.setdefault(target, []).append(
            CopyOrder(
                meta=state.directory.blocks.meta_of(row),
                source=source,
                age_ms=int(1000 * max(0.0, now_s - created_s)),
                wanted=state.directory.wanted_of(block.hash),
            )
        )
        self._budget.start(block.hash, target, block.num_bytes, is_paced=is_paced, now_s=now_s)

    def _send(self) -> None:
        orders, self._orders = self._orders, {}
        for target, copies in orders.items():
            member = self._state.membership.get(target)
            if member is not None and self._state.out.notify(member, CopyBlocks(copies=copies)):
                self._state.metrics.copies.labels("ordered").inc(len(copies))
                continue
            for order in copies:
                self._budget.end(order.meta.hash, target)
            self._budget.pause(target, self._state.now_s() + _PAUSE_S)

    def _free(self, node: NodeId, hashes: list[BlockHash]) -> None:
        member = self._state.membership.get(node)
        if member is not None and hashes:
            self._state.out.notify(member, FreeBlocks(hashes=hashes))

    # -- what there is -----------------------------------------------------------------------------------------------

    def _look(self, block_hash: BlockHash) -> tuple[BlockCopies | None, list[BlockLocation]]:
        """Where it is, and where it can be copied from: DRAM of nodes that answer."""
        state = self._state
        directory = state.directory
        found = directory.locate([block_hash], now_s=state.now_s(), lease_s=0)[0]
        if not found:
            return None, []
        kept = directory.kept_nodes(block_hash) if self._away else set()
        block = BlockCopies(
            hash=block_hash,
            num_bytes=found[0].length + found[0].trailer_bytes,
            wanted=directory.wanted_of(block_hash) or state.config.pool.replicas,
            holders=tuple(dict.fromkeys(at.node for at in found)),
            away=frozenset(self._away[node].domain for node in kept if node in self._away),
        )
        in_dram = [at for at in found if at.tier == "dram"]
        answering = [at for at in in_dram if _state_of(state, at.node) == "alive"]
        return block, answering or in_dram

    def _nodes(self) -> dict[NodeId, CopyNode]:
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


def domain_of(member: Member) -> str:
    """What the node shares the fate of."""
    return member.node.domain or member.node.host_id


def _state_of(state: MasterState, node: NodeId) -> str:
    member = state.membership.get(node)
    return "dead" if member is None else member.state
