"""Which replicas of a node leave next: what is left of the last choice, else a new one over the columns.

Surplus replicas that nobody used for a while go first, then what the policy puts first, then soft pinned ones; leased
and hard pinned ones never.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from daemons.config.segment_cut import SLOT_ALIGN
from daemons.protocol.report import Shortage
from daemons.store.directory.columns import NO_ROW, Rows
from daemons.store.directory.tables import RENAME_AFTER_S, Tables
from daemons.store.eviction.pins import HARD, SOFT
from daemons.store.eviction.policies import EvictionCandidates, EvictionPolicy
from daemons.store.eviction.victim_queue import VictimQueue

SURPLUS_IDLE_S = 60.0
"""Hot blocks may have more replicas than they should."""

ALL_BYTES: Final = 1 << 62
"""More than any node holds: the policy then puts all that it is given in order."""

SPARE_SHARE = 5
"""Of what a slot holds so much (1/5) is chosen beyond what must go now, for the next reports."""


class VictimChoice:
    """Over the tables of one directory, where it marks those that it names."""

    def __init__(self, tables: Tables, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.default_wanted = 1
        """Replicas of a block that has no number of its own: with more, idle ones are evicted first."""
        self._tables = tables
        self._queues: dict[int, dict[int, VictimQueue]] = {}
        """By slot, and there by the size of slots that is wanted; 0: of any."""

    def forget(self, number: int) -> None:
        """The slot is dropped."""
        self._queues.pop(number, None)

    def name(self, number: int, num_bytes: int, *, now_s: float, max_blocks: int) -> Rows:
        """Rows to free; what was named before and is not freed yet counts as freed for RENAME_AFTER_S."""
        slot = self._tables.slots[number]
        if now_s >= slot.pending_until_s:
            slot.pending_bytes = 0
        num_bytes -= slot.pending_bytes
        if num_bytes <= 0:
            return np.empty(0, np.intp)
        rows = self._next(number, num_bytes, now_s, max_blocks)
        self._mark(number, rows, now_s)
        return rows

    def name_fitting(
        self, number: int, shortage: Shortage, *, now_s: float, max_blocks: int
    ) -> Rows:
        """Rows to free in a node that is full for one size: of this size, or all of one slab where that is colder."""
        slot = self._tables.slots[number]
        if now_s >= slot.pending_until_s:
            slot.pending_bytes = 0
        size, num_slots = shortage.slot_bytes, min(shortage.num_slots, max_blocks)
        rows = self._next(number, num_slots * size, now_s, num_slots, size)
        slabs = list(self._slabs(number, shortage, now_s))
        if slabs:
            rows = self._coldest_of([*([rows] if len(rows) else []), *slabs], now_s)
        self._mark(number, rows, now_s)
        return rows

    def coldest(self, number: int, num_bytes: int, now_s: float, max_blocks: int) -> Rows:
        """Those that would go next, without naming them victims."""
        return self._choose(number, num_bytes, now_s, 0)[:max_blocks]

    def _mark(self, number: int, rows: Rows, now_s: float) -> None:
        slot, replicas = self._tables.slots[number], self._tables.replicas
        replicas.name_victims(rows, now_s + RENAME_AFTER_S)
        slot.pending_bytes += int(replicas.length.values[rows].sum())
        slot.pending_until_s = now_s + RENAME_AFTER_S

    def _slabs(self, number: int, shortage: Shortage, now_s: float) -> Iterator[Rows]:
        """Those of which all may go."""
        tables = self._tables
        levels = tables.pins.levels(tables.blocks, now_s=now_s)
        for slab in shortage.slabs:
            rows = np.array([tables.replica_on(number, each) for each in slab], np.intp)
            if len(rows) == 0 or NO_ROW in rows:  # one is not reported yet: it is new
                continue
            blocks = tables.replicas.block.values[rows].astype(np.intp)
            stays = tables.replicas.named_until_s.values[rows] > now_s
            stays |= tables.leases.until_s.values[blocks] > now_s
            if levels is not None:
                stays |= levels[blocks] >= SOFT
            if not stays.any():
                yield self.lowest(rows, ALL_BYTES)

    def _coldest_of(self, groups: Sequence[Rows], now_s: float) -> Rows:
        """Each as it should go, so its last one says how much it is missed; soft pins are missed more."""
        tables = self._tables
        last = np.array([group[-1] for group in groups], np.intp)
        levels = tables.pins.levels(tables.blocks, now_s=now_s)
        if levels is not None:
            level = levels[tables.replicas.block.values[last]]
            last = last[level == level.min()]
        coldest = self.lowest(last, ALL_BYTES)[0]
        return next(group for group in groups if group[-1] == coldest)

    def _next(
        self, number: int, num_bytes: int, now_s: float, max_blocks: int, slot_bytes: int = 0
    ) -> Rows:
        """Those left of the last choice, else of a new one."""
        queue = self._queues.setdefault(number, {}).setdefault(slot_bytes, VictimQueue())
        num_pins = self._tables.pins.num_changes
        if queue.is_good(now_s=now_s, num_pins=num_pins):
            rows = queue.take(
                number,
                (self._tables.replicas, self._tables.leases),
                num_bytes,
                now_s=now_s,
                max_blocks=max_blocks,
            )
            if len(rows):
                return rows
        spare_bytes = self._tables.slots[number].num_bytes // SPARE_SHARE
        chosen = self._choose(number, num_bytes, now_s, spare_bytes, slot_bytes)
        freed = np.cumsum(self._tables.replicas.length.values[chosen[:max_blocks]])
        count = min(int(np.searchsorted(freed, num_bytes)) + 1, len(freed))
        queue.keep(chosen[count:], now_s=now_s, num_pins=num_pins)
        return chosen[:count]

    def _choose(
        self, number: int, num_bytes: int, now_s: float, spare_bytes: int, slot_bytes: int = 0
    ) -> Rows:
        """Enough for `num_bytes` where there are so many, and for `spare_bytes` more where no pin is in the way."""
        tables, replicas = self._tables, self._tables.replicas
        is_here = replicas.slot.values == number
        is_here &= replicas.named_until_s.values <= now_s
        held = np.flatnonzero(is_here)
        if slot_bytes:
            trailers = replicas.field("trailer_bytes")[held]
            stored_bytes = replicas.length.values[held].astype(np.int64) + trailers
            held = held[-(-stored_bytes // SLOT_ALIGN) * SLOT_ALIGN == slot_bytes]
        if len(held) == 0:
            return held
        blocks = replicas.block.values[held].astype(np.intp)
        may_go = tables.leases.until_s.values.take(blocks) <= now_s
        groups = [(may_go, spare_bytes)]
        pins = tables.pins.levels(tables.blocks, now_s=now_s)
        if pins is not None:
            level = pins[blocks]
            is_soft = may_go & (level >= SOFT) & (level < HARD)
            groups = [(may_go & (level < SOFT), spare_bytes), (is_soft, 0)]
        surplus = self._is_surplus(blocks, now_s)
        if surplus is not None:
            free = groups[0][0]
            groups[:1] = [(free & surplus, spare_bytes), (free & ~surplus, spare_bytes)]
        rows: list[Rows] = []
        for group, more_bytes in groups:
            chosen = self.lowest(held[group], num_bytes + more_bytes)
            rows.append(chosen)
            num_bytes -= int(replicas.length.values[chosen].sum())
            if num_bytes <= 0:
                break
        return np.concatenate(rows)

    def _is_surplus(self, blocks: Rows, now_s: float) -> NDArray[np.bool_] | None:
        """Blocks with more replicas in DRAM than they should, unused for a while: no prefix is cut without this one."""
        tables, replicas = self._tables, self._tables.replicas
        if not tables.has_spares:
            return None
        is_counted = np.zeros(len(tables.slots) + 1, bool)
        for number, slot in tables.slots:
            is_counted[number] = not slot.is_dropped and slot.tier == "dram"
        if np.count_nonzero(is_counted) < 2:
            return None
        counted = is_counted[replicas.slot.values]
        count = np.bincount(replicas.block.values[counted], minlength=len(tables.blocks.kind))
        own = tables.blocks.wanted.values[blocks]
        is_idle = tables.leases.used_s.values[blocks] < now_s - SURPLUS_IDLE_S
        wanted = np.where(own > 0, own, self.default_wanted)
        return (count[blocks] > np.maximum(wanted, tables.blocks.hot.values[blocks])) & is_idle

    def lowest(self, held: Rows, num_bytes: int) -> Rows:
        """Of these replicas, as the policy has it."""
        tables = self._tables
        blocks = tables.replicas.block.values[held].astype(np.intp)
        chosen = self.policy.choose(
            EvictionCandidates(
                used_s=tables.leases.used_s.values.take(blocks),
                depth=tables.blocks.depth.values.take(blocks),
                num_bytes=tables.replicas.length.values[held],
                num_tokens=tables.blocks.num_tokens.values.take(blocks),
                heat=None if tables.heat is None else tables.heat.column().take(blocks),
            ),
            num_bytes,
        )
        found: Rows = held[chosen]
        return found
