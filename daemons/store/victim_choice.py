"""Which replicas of a node leave next: what is left of the last choice, else a new one over the columns in numpy.

Surplus replicas that nobody used for a while go first, then what the policy puts first, then soft pinned ones; leased
and hard pinned ones never.
"""

import numpy as np
from numpy.typing import NDArray

from daemons.store.block_table import BlockTable
from daemons.store.eviction import EvictionCandidates, EvictionPolicy
from daemons.store.heat import HeatTable
from daemons.store.lease import LeaseTable
from daemons.store.pins import HARD, SOFT, PinTable
from daemons.store.replica_table import ReplicaTable
from daemons.store.victim_queue import VictimQueue

SURPLUS_IDLE_S = 60.0
"""Hot blocks may have more replicas than they should."""

SPARE_SHARE = 20
"""Of what a slot holds so much (1/20) is chosen beyond what must go now, for the next reports."""


class VictimChoice:
    """Over the tables of one directory, which it only reads."""

    def __init__(  # the tables of a directory, each once
        self,
        blocks: BlockTable,
        replicas: ReplicaTable,
        leases: LeaseTable,
        pins: PinTable,
        heat: HeatTable | None,
        policy: EvictionPolicy,
    ) -> None:
        self.blocks = blocks
        self.replicas = replicas
        self.leases = leases
        self.pins = pins
        self.heat = heat
        self.policy = policy
        self.default_wanted = 1
        """Replicas of a block that has no number of its own: with more, idle ones are evicted first."""
        self._queues: dict[int, VictimQueue] = {}
        """By slot."""

    def forget(self, number: int) -> None:
        """The slot is dropped."""
        self._queues.pop(number, None)

    def next_victims(self, number: int, num_bytes: int, now_s: float, max_blocks: int) -> list[int]:
        """Those left of the last choice, else of a new one."""
        queue = self._queues.setdefault(number, VictimQueue())
        num_pins = self.pins.num_changes
        if queue.is_good(now_s=now_s, num_pins=num_pins):
            rows = queue.take(
                number,
                (self.replicas, self.leases),
                num_bytes,
                now_s=now_s,
                max_blocks=max_blocks,
            )
            if rows:
                return rows
        spare_bytes = self._slot_bytes(number) // SPARE_SHARE
        chosen = self._choose(number, num_bytes, now_s, spare_bytes)
        count, lengths = 0, self.replicas.length
        while num_bytes > 0 and count < min(len(chosen), max_blocks):
            num_bytes -= lengths[chosen[count]]
            count += 1
        queue.keep(chosen[count:], now_s=now_s, num_pins=num_pins)
        return chosen[:count]

    def coldest(self, number: int, num_bytes: int, now_s: float, max_blocks: int) -> list[int]:
        """Those that would go next, without naming them victims."""
        return self._choose(number, num_bytes, now_s)[:max_blocks]

    def _choose(self, number: int, num_bytes: int, now_s: float, spare_bytes: int = 0) -> list[int]:
        """Enough for `num_bytes` where there are so many, and for `spare_bytes` more where no pin is in the way."""
        if not self.replicas.num_rows:
            return []
        is_here = self.replicas.slot_column() == number
        is_here &= np.frombuffer(self.replicas.named_until_s, np.float64) <= now_s
        held = np.flatnonzero(is_here)
        if len(held) == 0:
            return []
        blocks = np.frombuffer(self.replicas.block, np.int32)[held].astype(np.intp)
        may_go = self.leases.until_column().take(blocks) <= now_s
        groups = [(may_go, spare_bytes)]
        pins = self.pins.levels(self.blocks, now_s=now_s)
        if pins is not None:
            level = pins[blocks]
            is_soft = may_go & (level >= SOFT) & (level < HARD)
            groups = [(may_go & (level < SOFT), spare_bytes), (is_soft, 0)]
        surplus = self._is_surplus(blocks, now_s)
        if surplus is not None:
            free = groups[0][0]
            groups[:1] = [(free & surplus, spare_bytes), (free & ~surplus, spare_bytes)]
        rows: list[int] = []
        for group, more_bytes in groups:
            chosen = self.lowest(held[group], num_bytes + more_bytes)
            rows += chosen
            num_bytes -= int(np.frombuffer(self.replicas.length, np.uint64)[chosen].sum())
            if num_bytes <= 0:
                break
        return rows

    def _is_surplus(self, blocks: NDArray[np.intp], now_s: float) -> NDArray[np.bool_] | None:
        """Blocks with more replicas in DRAM than they should, unused for a while: no prefix is cut without this one."""
        is_counted = np.array(
            [
                slot is not None and not slot.is_dropped and slot.tier == "dram"
                for slot in self.replicas.slots
            ]
            + [False],
            bool,
        )
        if is_counted.sum() < 2:
            return None
        counted = is_counted[self.replicas.slot_column()]
        count = np.bincount(
            np.frombuffer(self.replicas.block, np.int32)[counted], minlength=len(self.blocks.kind)
        )[blocks]
        own = np.frombuffer(self.blocks.wanted, np.uint8)[blocks]
        is_idle = self.leases.used_column()[blocks] < now_s - SURPLUS_IDLE_S
        wanted = np.where(own > 0, own, self.default_wanted)
        hot = np.frombuffer(self.blocks.hot, np.uint8)[blocks]
        return (count > np.maximum(wanted, hot)) & is_idle

    def lowest(self, held: NDArray[np.intp], num_bytes: int) -> list[int]:
        """Of these replicas, as the policy has it."""
        blocks = np.frombuffer(self.replicas.block, np.int32)[held].astype(np.intp)
        chosen = self.policy.choose(
            EvictionCandidates(
                used_s=self.leases.used_column().take(blocks),
                depth=np.frombuffer(self.blocks.depth, np.uint32).take(blocks),
                num_bytes=np.frombuffer(self.replicas.length, np.uint64).take(held),
                num_tokens=np.frombuffer(self.blocks.num_tokens, np.uint32).take(blocks),
                heat=None if self.heat is None else self.heat.column().take(blocks),
            ),
            num_bytes,
        )
        rows: list[int] = held[chosen].tolist()
        return rows

    def _slot_bytes(self, number: int) -> int:
        slot = self.replicas.slots[number]
        return 0 if slot is None else slot.num_bytes
