"""Empties a segment that is to be given back: its blocks move to the node's others, the most recently used first.

What finds no room there waits while the master evicts from the node as from a full one. When nothing moves any more
the coldest that are left go below, or for good; those that are pinned hard stay, and so does the segment, which says
why. Loop thread only; bytes are copied, and verified, by the copy workers.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash
from daemons.core.units import format_count, format_size
from daemons.mc_cachenode.puts.pull import is_intact
from daemons.mc_cachenode.replica import Replica
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.rpc import Loop
from daemons.store.segment.copy_workers import CopyWorkers
from daemons.store.segment.segment import Segment

log = logging.getLogger(__name__)

_STEP_S: Final = 0.02
_MAX_MOVING: Final = 16
_PATIENCE_S: Final = 2.0
"""Without one more block moved: the master makes no room, or there is none to make."""
_GIVEN_UP_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class LeavingParts:
    """`on_moved(hash)`: it is read elsewhere now; `on_empty(segment)`: nothing is in it any more."""

    loop: Loop
    replicas: ReplicaTable
    workers: CopyWorkers
    leaves_later: Callable[[Replica], bool]
    """Whether it is written to a lower tier first, and freed then."""
    free: Callable[[Sequence[BlockHash], str], object]
    on_moved: Callable[[BlockHash], object]
    on_empty: Callable[[Segment], object]


class Leaving:
    """One segment on its way out, from when it is made."""

    def __init__(self, parts: LeavingParts, segment: Segment) -> None:
        self._parts = parts
        self.segment = segment
        self.why = ""
        """What it waits for."""
        self._queue: deque[BlockHash] = deque()
        self._moving: set[BlockHash] = set()
        self._moved_s = parts.loop.clock()
        parts.replicas.segments.leave(segment)
        self._step()

    def _step(self) -> None:
        if not self.segment.slots.num_allocated:
            self._parts.on_empty(self.segment)
            return
        if not self._queue and not self._moving:
            self._queue.extend(self._left())
        while self._queue and len(self._moving) < _MAX_MOVING:
            if not self._begin(self._queue[0]):
                break
            self._queue.popleft()
        if self._parts.loop.clock() - self._moved_s > _PATIENCE_S and not self._moving:
            self._give_some_up()
        self._parts.loop.call_later(_STEP_S, self._step)

    def _left(self) -> list[BlockHash]:
        """The most recently used first."""
        mine = [r.meta.hash for r in self._parts.replicas.sealed() if r.segment is self.segment]
        return mine[::-1]

    def _begin(self, block_hash: BlockHash) -> bool:
        """False when it must wait: there is no room, or enough to do."""
        parts = self._parts
        replica = parts.replicas.get(block_hash)
        is_here = replica is not None and replica.segment is self.segment
        if replica is None or not is_here or replica.state != "sealed":
            return True
        try:
            moved = parts.replicas.begin_move(replica)
        except Exhausted as error:
            self.why = error.message
            return False
        try:
            parts.workers.submit("move", lambda: self._copy(replica, moved))
        except Exhausted as error:
            parts.replicas.abandon_move(replica, moved)
            self.why = error.message
            return False
        self._moving.add(block_hash)
        return True

    def _copy(self, replica: Replica, moved: Replica) -> None:
        """On a worker. Damage is not carried on."""
        size = replica.length + replica.trailer_bytes
        np.copyto(
            moved.segment.array[moved.offset : moved.offset + size],
            replica.segment.array[replica.offset : replica.offset + size],
        )
        self._parts.loop.call_soon_threadsafe(self._copied, replica, moved, is_intact(moved))

    def _copied(self, replica: Replica, moved: Replica, is_good: bool) -> None:
        parts, block_hash = self._parts, replica.meta.hash
        self._moving.discard(block_hash)
        self._moved_s, self.why = parts.loop.clock(), ""
        if not is_good:
            parts.replicas.abandon_move(replica, moved)
            if replica.state == "sealed":
                log.error("bad replica dropped block=%s why=found as it moved", block_hash.hex())
                parts.free([block_hash], "bad")
        elif parts.replicas.end_move(replica, moved):
            parts.on_moved(block_hash)

    def _give_some_up(self) -> None:
        """The coldest of those that nobody pinned hard."""
        parts, now_s = self._parts, time.monotonic()
        left = [r for r in parts.replicas.sealed() if r.segment is self.segment]
        pinned = [r for r in left if parts.replicas.is_pinned_hard(r.meta.hash, now_s=now_s)]
        stays = {r.meta.hash for r in pinned}
        going = [r for r in left if r.meta.hash not in stays and not r.num_holds]
        for replica in islice(going, _GIVEN_UP_AT_ONCE):
            if not parts.leaves_later(replica):
                parts.free([replica.meta.hash], "evicted")
        if pinned and not going:
            num_bytes = sum(replica.length for replica in pinned)
            self.why = (
                f"{format_count(len(pinned), 'block')} ({format_size(num_bytes)}) are pinned and find no room in "
                "other segments: unpin them, or add a segment"
            )
        elif not going:
            self.why = "readers or writers still use what is left"
