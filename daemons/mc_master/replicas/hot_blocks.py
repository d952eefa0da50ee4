"""Hot blocks get replicas where they are read, cool ones lose them, and cold ones leave a full node for an empty one.

What is hot is conductor/hot_blocks.py's to say; the copies themselves are made by Replicating and Moving.
"""

from typing import Final

from daemons.conductor.hot_blocks import Heat, HotBlocks, HotRules
from daemons.conductor.replication import choose_spread
from daemons.config.mc_master import PoolSection
from daemons.core.ids import BlockHash, HostId, NodeId
from daemons.mc_master.replicas.replicating import Replicating
from daemons.mc_master.state import MasterState
from daemons.store.directory.columns import Rows
from daemons.store.eviction.use_counts import RowCounts

_SPREAD_S: Final = 1.0
_SPREAD_BLOCKS: Final = 256
"""On their way at one time."""
_SURPLUS_BLOCKS: Final = 256
"""Looked at in one go."""
_GIVE_UP_S: Final = 120.0
"""What could not be dropped by then, for it was read all the time, is left to eviction."""


class HeatHandling:
    """Loop thread only."""

    def __init__(self, state: MasterState, replicating: Replicating) -> None:
        self._state = state
        self._replicating = replicating
        self._window = HotBlocks(rules_of(state.config.pool), RowCounts(state.directory.blocks))
        self._cooling: dict[BlockHash, float] = {}
        """With surplus replicas, and until when they are looked at."""
        self._next_spread_s = 0.0

    def used(self, rows: Rows, near: HostId | None = None) -> list[BlockHash]:
        """A request reads the blocks of these rows, on this host; those that are to get another replica for it."""
        risen = self._window.use(rows)
        if risen:
            prefer = self._nodes_on(near)
            for heat in risen:
                self._set(heat)
                self._replicating.ask(heat.hash, prefer)
            self._state.metrics.heated_blocks.inc(len(risen))
        return [heat.hash for heat in risen]

    def run_once(self) -> None:
        """A bounded piece; called often."""
        state, now_s = self._state, self._state.now_s()
        self._window.rules = rules_of(state.config.pool)
        for heat in self._window.roll(now_s=now_s):
            if self._set(heat):
                self._cooling[heat.hash] = now_s + _GIVE_UP_S
                state.metrics.cooled_blocks.inc()
        self._drop_cooled(now_s)
        if now_s >= self._next_spread_s:
            self._next_spread_s = now_s + _SPREAD_S
            state.metrics.hot_blocks.set(len(self._window))
            if state.config.pool.spread_cold:
                self._spread(now_s)

    def _set(self, heat: Heat) -> bool:
        """False for a block that is gone."""
        blocks = self._state.directory.blocks
        row = blocks.row_by_hash.get(heat.hash)
        if row is None:
            self._window.forget([heat.hash])
            return False
        blocks.heat(row, heat.num_replicas)
        return True

    def _nodes_on(self, host: HostId | None) -> tuple[NodeId, ...]:
        if host is None:
            return ()
        return tuple(m.node.node for m in self._state.membership.on_host(host) if m.node.segments)

    def _drop_cooled(self, now_s: float) -> None:
        """Those that cannot go yet, for somebody reads them, are tried again."""
        if not self._cooling:
            return
        looked = list(self._cooling.items())[:_SURPLUS_BLOCKS]
        left = self._replicating.drop_surplus([block_hash for block_hash, _ in looked])
        for block_hash, until_s in looked:
            del self._cooling[block_hash]
            if block_hash in left and now_s < until_s:
                self._cooling[block_hash] = until_s

    def _spread(self, now_s: float) -> None:
        state, moving = self._state, self._replicating.moving
        if len(moving) >= _SPREAD_BLOCKS:
            return
        spread = choose_spread(
            self._replicating.copies.nodes(), full=state.config.pool.low_watermark
        )
        if spread is None:
            return
        hashes = state.directory.coldest(
            spread.source, spread.num_bytes, now_s=now_s, max_blocks=_SPREAD_BLOCKS - len(moving)
        )
        for block_hash in hashes:
            moving.ask(block_hash, spread.target, spread.source)
        state.metrics.spread_blocks.inc(len(hashes))


def rules_of(pool: PoolSection) -> HotRules:
    return HotRules(pool.hot_uses, pool.hot_window_s, pool.hot_replicas)
