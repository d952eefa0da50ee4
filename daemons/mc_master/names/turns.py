"""Large values take turns where the pool has not room for all that are being put: how much there is, and who waits.

A value of one block takes no part in it: it may go as soon as it is sealed.
"""

from typing import Final

from daemons.config.segment_cut import default_slab_bytes
from daemons.core.ids import BlockHash, NodeId
from daemons.core.units import format_size
from daemons.mc_master.state import MasterState
from daemons.protocol.objects import ReservedName
from daemons.store.directory import listing
from daemons.store.directory.large_puts import LargePuts

_SPARE_SLABS: Final = 3
"""Of each node: for the last chunks and the objects' own blocks, which lie in slots of other sizes."""
_COUNT_AGAIN_S: Final = 0.5


class Turns:
    """Loop thread only."""

    def __init__(self, state: MasterState, puts: LargePuts) -> None:
        self._state = state
        self._puts = puts
        self._room_bytes = 0
        self._counted_s = float("-inf")

    def waits(self, key: BlockHash, num_bytes: int) -> ReservedName | None:
        """None where it may begin."""
        if not self._puts and not self._puts.num_waiting:
            return None
        now_s = self._state.now_s()
        room_bytes = self._room(now_s)
        found = self._puts.may_begin(key, num_bytes, room_bytes=room_bytes, now_s=now_s)
        if found is None:
            return None
        return ReservedName(
            status="waits_for_room",
            why=f"other puts in progress ({found.num_held}) hold {format_size(found.held_bytes)} of the "
            f"{format_size(room_bytes)} that large values may take at a time, and {found.num_before} wait before it",
        )

    def queue(self, key: BlockHash) -> None:
        """It keeps its place as long as it asks."""
        self._puts.wait(key, now_s=self._state.now_s())

    def hold(self, key: BlockHash, version: int, num_bytes: int, hold_s: float) -> None:
        """It has begun, or goes on."""
        until_s = self._state.now_s() + hold_s
        self._puts.hold(key, version, num_bytes, until_s=until_s)

    def lost(self, key: BlockHash, version: int) -> ReservedName | None:
        """Of one that may have lost chunks already. None: it goes on."""
        if not self._puts.is_over(key, version):
            return None
        return ReservedName(
            status="lost",
            version=version,
            why="the master did not hear of it for so long that its chunks made room for others",
        )

    def _room(self, now_s: float) -> int:
        """What the DRAM of all nodes can make free, at least."""
        if now_s >= self._counted_s + _COUNT_AGAIN_S:
            self._counted_s = now_s
            nodes = [m for m in self._state.membership if m.node.segments and not m.is_draining]
            self._room_bytes = sum(
                max(0, m.capacity_bytes - _spare_bytes(m.node.segments[0].capacity_bytes))
                - self._pinned_bytes(m.node.node, now_s)
                for m in nodes
            )
        return self._room_bytes

    def _pinned_bytes(self, node: NodeId, now_s: float) -> int:
        directory = self._state.directory
        if not directory.pins.pins:
            return 0
        return listing.held_back(directory, node, now_s=now_s).pinned_bytes


def _spare_bytes(segment_bytes: int) -> int:
    return _SPARE_SLABS * default_slab_bytes(segment_bytes)
