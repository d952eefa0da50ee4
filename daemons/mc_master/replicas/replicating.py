"""Further replicas: finds blocks that have too few or too many, and has nodes copy from peers, or free.

A new block's copies are made at once, on the hint of the report that named it. What was lost with a node is found by
a pass over the whole directory, once the node has been away for `rebuild_delay_s`; what a draining node holds, at once.
The rules are in conductor/replication.py; nothing here waits.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from daemons.conductor.membership import Member
from daemons.conductor.replication import (
    FULL_FOR_REPAIR,
    CopyNode,
    choose_surplus,
    choose_target,
    num_missing,
)
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.replicas.copies import MAX_WAITING, Away, Copies, domain_of
from daemons.mc_master.replicas.moving import Moving
from daemons.mc_master.state import MasterState
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.replication import CopyFailed
from daemons.store.directory.columns import NO_ROW
from daemons.store.directory.replica_counts import (
    CountPass,
    CountRules,
    ReplicaCounts,
    count_replicas,
)

log = logging.getLogger(__name__)

_SCAN_S: Final = 1.0
_SCAN_BLOCKS: Final = 20_000
_FEW_BLOCKS: Final = 1000
_WORK_S: Final = 0.003
"""Time for weighing blocks in one go; lookups wait meanwhile."""
_MAX_STUCK: Final = 16
"""So many that no node can take now, and the rest is left for the next time."""
_SETTLE_S: Final = 5.0
"""What a node that is back may take to announce its blocks."""
_DROP_AGAIN_S: Final = 5.0

_Waiting = dict[BlockHash, tuple[NodeId, ...]]
"""With the nodes to prefer."""


class Replicating:
    """Loop thread only."""

    def __init__(self, state: MasterState) -> None:
        self.copies = Copies(state)
        self.moving = Moving(state, self.copies)
        self._state = state
        self._fresh: _Waiting = {}
        """New blocks; those beyond MAX_WAITING are found by the next look."""
        self._repairs: _Waiting = {}
        self._dropping: dict[BlockHash, float] = {}
        """Surplus that was told to go, until when it is not looked at again."""
        self._failures: dict[NodeId, str] = {}
        """The last one of a copy of what a draining node holds."""
        self._next_scan_s = 0.0
        self._scan: CountPass | None = None
        self.on_work: Callable[[], object] = lambda: None
        """Called when there is something to do that should not wait."""

    @property
    def is_in_use(self) -> bool:
        """Whether any block should have more than one replica."""
        blocks = self._state.directory.blocks
        return self._state.config.pool.replicas > 1 or blocks.num_wanted > 0 or blocks.num_hot > 0

    # -- what happens ------------------------------------------------------------------------------------------------

    def on_sealed(self, node: NodeId, sealed: SealedBlocks) -> None:
        """Reported just now, perhaps not for the first time."""
        default, blocks = self._state.config.pool.replicas, self._state.directory.blocks
        # Hot blocks are asked for when they become so, not when they are reported.
        is_more_wanted = default > 1 or blocks.num_wanted > 0
        if self.copies.is_removing:
            self.copies.is_back(sealed.hashes(), node)
        if not is_more_wanted and not len(self.copies.budget):
            return
        hashes = sealed.hashes()
        self.copies.sealed(hashes, node)
        if is_more_wanted:
            rows = blocks.find_all(hashes)
            own = np.where(rows == NO_ROW, 0, blocks.wanted.values[rows])
            is_short = np.where(own > 0, own, default) > 1
            is_short &= sealed.columns()["age_ms"] < _SETTLE_S * 1000
            for index in np.flatnonzero(is_short).tolist():
                self.ask(hashes[index])

    def ask(self, block_hash: BlockHash, prefer: tuple[NodeId, ...] = ()) -> None:
        """Make what copies it lacks, as soon as nodes can take them."""
        if len(self._fresh) < MAX_WAITING:
            self._fresh[block_hash] = prefer
            self.on_work()

    def drop_surplus(self, hashes: Sequence[BlockHash]) -> set[BlockHash]:
        """Have replicas freed that these have beyond what they should; those that still have some afterwards."""
        nodes = self.copies.nodes()
        self._drop_surplus(hashes, nodes, self._state.now_s())
        return {block_hash for block_hash in hashes if self._has_surplus(block_hash, nodes)}

    def _has_surplus(self, block_hash: BlockHash, nodes: dict[NodeId, CopyNode]) -> bool:
        if self.copies.budget.num_of(block_hash):
            return True
        block, _ = self.copies.look(block_hash)
        return block is not None and choose_surplus(block, nodes) is not None

    def on_failed(self, message: CopyFailed) -> None:
        """What still lacks copies is found by the next look."""
        failed = self.copies.failed(message)
        self.moving.failed(failed, message.node, message.why)
        for node in self._draining_holders(failed):
            self._failures[node] = f"{message.node}: {message.why}"[:200]

    def on_gone(self, member: Member) -> int:
        """Its blocks cannot be read any more; how many replicas those are. They count until it is given up."""
        state, node = self._state, member.node.node
        self.copies.budget.forget(node)
        if not self.is_in_use:
            return state.directory.drop_node(node)
        until_s = state.now_s() + state.config.pool.rebuild_delay_s
        self.copies.away[node] = Away(until_s, domain_of(member))
        return state.directory.keep_away(node)

    def on_joined(self, node: NodeId) -> None:
        """Of a node that was away: it announces what it still has, which takes a moment."""
        away = self.copies.away.get(node)
        if away is not None:
            away.until_s = self._state.now_s() + _SETTLE_S

    # -- what there is -----------------------------------------------------------------------------------------------

    def count_left(self) -> None:
        """Of each draining node, what would be short without it."""
        rules = self._rules(self.copies.nodes())
        self._tell_left(count_replicas(self._state.directory, rules, limit=0))

    def num_short(self, hashes: Collection[BlockHash]) -> int:
        """How many of these have fewer replicas than they should and could."""
        nodes = self.copies.nodes()
        if len(hashes) <= _FEW_BLOCKS:
            found = (self.copies.look(block_hash)[0] for block_hash in hashes)
            return sum(block is not None and num_missing(block, nodes) > 0 for block in found)
        limit = len(self._state.directory.blocks)
        counts = count_replicas(self._state.directory, self._rules(nodes), limit=limit)
        return len({*counts.short, *counts.only_draining}.intersection(hashes))

    def num_domains(self) -> int:
        return len({node.domain for node in self.copies.nodes().values() if node.can_take})

    # -- what is done about it ---------------------------------------------------------------------------------------

    def run_once(self) -> bool:
        """A bounded piece; whether there is more to do."""
        state = self._state
        now_s = state.now_s()
        self.copies.expire()
        self._give_up_absent(now_s)
        is_draining = any(member.is_draining for member in state.membership)
        if self._scan is not None or self.is_in_use or is_draining:
            self._look_around(now_s)
        if not (self._fresh or self._repairs or len(self.moving)):
            return self._scan is not None
        nodes = self.copies.nodes()
        self.moving.run_once(nodes)
        pool = state.config.pool
        self._work_on(self._fresh, nodes, full=pool.high_watermark, is_paced=False)
        full = pool.low_watermark - FULL_FOR_REPAIR
        self._work_on(self._repairs, nodes, full=full, is_paced=True)
        self.copies.send()
        return True

    def _give_up_absent(self, now_s: float) -> None:
        for node, away in list(self.copies.away.items()):
            if now_s >= away.until_s:
                log.info("node given up, or back node=%s", node)
                del self.copies.away[node]
                self._state.directory.let_go(node)

    def _look_around(self, now_s: float) -> None:
        """One step of a pass over all blocks; a new one begins some time after the last."""
        if self._scan is None:
            if now_s < self._next_scan_s:
                return
            rules = self._rules(self.copies.nodes())
            self._scan = CountPass(self._state.directory, rules, limit=_SCAN_BLOCKS)
        if self._scan.step():
            self._found(self._scan.counts, now_s)
            self._scan = None
            self._next_scan_s = now_s + _SCAN_S

    def _found(self, counts: ReplicaCounts, now_s: float) -> None:
        state = self._state
        self._tell_left(counts)
        self._repairs = dict.fromkeys(self.copies.awake(counts.only_draining), ())
        # A young master does not know who is missing: what looks lost may only not have been announced.
        if now_s >= state.started_s + state.config.pool.rebuild_delay_s:
            self._repairs |= dict.fromkeys(self.copies.awake(counts.short), ())
            self._drop_surplus(counts.surplus[:_FEW_BLOCKS], self.copies.nodes(), now_s)
        state.metrics.short_blocks.set(len(counts.short) + len(counts.only_draining))

    def _rules(self, nodes: dict[NodeId, CopyNode]) -> CountRules:
        away = self.copies.away
        domains = {node.node: node.domain for node in nodes.values()}
        possible = {node.domain for node in nodes.values() if node.can_take}
        return CountRules(
            domains={node: each.domain for node, each in away.items()} | domains,
            num_domains=len(possible | {each.domain for each in away.values()}),
            draining=frozenset(n.node for n in nodes.values() if not n.is_staying),
            default=self._state.config.pool.replicas,
            is_object_shared=self.copies.is_object_shared(),
        )

    def _tell_left(self, counts: ReplicaCounts) -> None:
        for member in self._state.membership:
            # Before its first report nothing is known of what it holds.
            node = member.node.node
            left = counts.left.get(node)
            member.left = None if member.next_sequence is None else left
            member.left_below = counts.left_below.get(node, 0)
            if left and left[0]:
                member.left_why = self._why_left(node)
            else:
                self._failures.pop(node, None)

    def _why_left(self, draining: NodeId) -> str:
        """Empty while copies get on."""
        takers = [node for node in self.copies.nodes().values() if node.can_take]
        if not takers:
            return "no other node takes blocks"
        full = self._state.config.pool.low_watermark - FULL_FOR_REPAIR
        if all(node.used_share >= full for node in takers):
            return f"the other nodes are full: copies fill a node to {full:.0%}"
        return self._failures.get(draining, "")

    def _draining_holders(self, hashes: Sequence[BlockHash]) -> set[NodeId]:
        draining = {m.node.node for m in self._state.membership if m.is_draining}
        if not draining:
            return set()
        directory = self._state.directory
        rows = (directory.blocks.row_by_hash.get(block_hash) for block_hash in hashes)
        return {node for row in rows if row is not None for node in directory.nodes_of(row)} & (
            draining
        )

    def _drop_surplus(
        self, hashes: Sequence[BlockHash], nodes: dict[NodeId, CopyNode], now_s: float
    ) -> None:
        self._dropping = {h: until_s for h, until_s in self._dropping.items() if until_s > now_s}
        chosen: dict[NodeId, list[BlockHash]] = {}
        for block_hash in hashes:
            if block_hash in self._dropping or self.copies.budget.num_of(block_hash):
                continue
            block, _ = self.copies.look(block_hash)
            node = None if block is None else choose_surplus(block, nodes)
            if node is not None:
                chosen.setdefault(node, []).append(block_hash)
        for node, surplus in chosen.items():
            given = self._state.directory.give_up(node, surplus, now_s=now_s)
            self._dropping |= dict.fromkeys(given, now_s + _DROP_AGAIN_S)
            self.copies.free(node, given)

    def _work_on(
        self, waiting: _Waiting, nodes: dict[NodeId, CopyNode], *, full: float, is_paced: bool
    ) -> None:
        """From the front; what no node can take just now goes behind the others."""
        num_stuck = 0
        until_s = self._state.now_s() + _WORK_S
        for _ in range(len(waiting)):
            block_hash = next(iter(waiting))
            prefer = waiting.pop(block_hash)
            if not self._copy(block_hash, nodes, prefer, full=full, is_paced=is_paced):
                waiting[block_hash] = prefer
                num_stuck += 1
            if num_stuck == _MAX_STUCK or self._state.now_s() >= until_s:
                return

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
        budget, now_s = self.copies.budget, self._state.now_s()
        block, sources = self.copies.look(block_hash)
        if block is None or not sources:
            return True
        # Those under way count as there.
        block = replace(block, holders=(*block.holders, *budget.targets_of(block_hash, nodes)))
        for _ in range(num_missing(block, nodes)):
            busy = [
                node
                for node in nodes
                if not budget.may_start(node, block.num_bytes, is_paced=is_paced, now_s=now_s)
            ]
            target = choose_target(block, nodes, full=full, prefer=prefer, busy=busy)
            if target is None:
                # Without any room there is nothing to wait for: the next look finds it again.
                return choose_target(block, nodes, full=full, prefer=prefer) is None
            self.copies.order(block, sources, target, is_paced=is_paced)
            block = replace(block, holders=(*block.holders, target))
        return True
