"""What sizes puts wait for in a node that has room in slots of other sizes only; the master says what goes for them.

Asked with the next report. The node offers slabs that could serve another size: it alone knows what lies together.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash
from daemons.mc_cachenode.replica import Replica
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.protocol.report import Shortage
from daemons.store.segment.segment import Segment

_MAX_SIZES: Final = 8
"""In one report; the next tells of others."""
_MAX_SCANNED: Final = 10_000
"""Oldest blocks in whose slabs one is looked for."""
_MAX_SLABS: Final = 8
_SCAN_AGAIN_S: Final = 0.25
_SPARE_SHARE: Final = 8
"""Of a slab so much (1/8) is asked for at once: a put behind this one then finds a slot."""
_ASK_AGAIN_S: Final = 0.1
"""After the master had nothing to give."""
_LEAVING_S: Final = 1.0
"""For victims that a lower tier takes first."""

_Slab = tuple[Segment, int, int]
"""Segment, number, size of slots."""


@dataclass(slots=True)
class _Asked:
    """About one size. `victims`: those that were named for it, and may still be leaving."""

    at_s: float
    victims: list[BlockHash] = field(default_factory=list)


class Shortages:
    """Loop thread only."""

    def __init__(self, replicas: ReplicaTable) -> None:
        self._replicas = replicas
        self._wanted: dict[int, int] = {}
        """Slots, by their size."""
        self._asked: dict[int, _Asked] = {}
        self._scanned_s = float("-inf")
        self._found: dict[_Slab, list[BlockHash]] = {}
        """What was found then."""

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def want(self, stored_bytes: int) -> bool:
        """A slot for so much, payload and trailer; whether the master is to be asked now."""
        slots = self._replicas.segments.first.slots
        size = slots.slot_bytes(stored_bytes)
        if stored_bytes > self._replicas.segments.slab_bytes or not self._may_ask(size):
            return False
        self._wanted[size] = max(1, slots.slab_bytes // _SPARE_SHARE // size)
        return True

    def take(self) -> list[Shortage]:
        """For the report that is made now: of what there is still no slot for."""
        self._wanted = {s: num for s, num in self._wanted.items() if not self._has_slot(s)}
        sizes = list(islice(self._wanted, _MAX_SIZES))
        now_s = time.monotonic()
        slabs = self._oldest_slabs(now_s) if sizes else {}
        found = []
        self._asked = {
            size: asked for size, asked in self._asked.items() if now_s - asked.at_s < _LEAVING_S
        }
        for size in sizes:
            self._asked[size] = _Asked(now_s)
            others = [slab for other, slab in slabs.items() if other[2] != size]
            found.append(Shortage(slot_bytes=size, num_slots=self._wanted.pop(size), slabs=others))
        return found

    def on_answer(self, shortages: Sequence[Shortage], victims: Sequence[BlockHash]) -> None:
        """They are on their way out."""
        for shortage in shortages:
            if shortage.slot_bytes in self._asked:
                self._asked[shortage.slot_bytes].victims = list(victims)

    def _has_slot(self, size: int) -> bool:
        try:
            segment, offset = self._replicas.segments.allocate(size)
        except Exhausted:
            return False
        segment.free(offset)
        return True

    def _may_ask(self, size: int) -> bool:
        asked = self._asked.get(size)
        if asked is None:
            return True
        since_s = time.monotonic() - asked.at_s
        if not asked.victims:
            return since_s >= _ASK_AGAIN_S
        while asked.victims and not self._is_leaving(asked.victims[-1]):
            asked.victims.pop()
        if asked.victims and since_s < _LEAVING_S:
            return False
        del self._asked[size]
        return True

    def _is_leaving(self, block_hash: BlockHash) -> bool:
        replica = self._replicas.get(block_hash)
        return replica is not None and replica.state == "sealed"

    def _oldest_slabs(self, now_s: float) -> dict[_Slab, list[BlockHash]]:
        """Of slabs in which nothing is written, held or younger."""
        if now_s - self._scanned_s < _SCAN_AGAIN_S:
            # Where one came or went since, it is not said; the next scan sees it.
            return {k: v for k, v in self._found.items() if len(v) == k[0].slots.num_used_in(k[1])}
        self._scanned_s = now_s
        by_slab: dict[_Slab, list[Replica]] = defaultdict(list)
        for replica in islice(self._replicas.sealed(), _MAX_SCANNED):
            segment, is_replaced = replica.segment, self._replicas.is_replaced(replica.meta.hash)
            if not (segment.is_leaving or replica.num_holds or is_replaced):
                slab = segment.slots.slab_of(replica.offset)
                by_slab[segment, slab, segment.slots.slot_bytes_of(slab)].append(replica)
        whole = (
            (slab, [each.meta.hash for each in found])
            for slab, found in by_slab.items()
            if len(found) == slab[0].slots.num_used_in(slab[1])
        )
        self._found = dict(islice(whole, _MAX_SLABS))
        return self._found
