"""Slots: a tier of one life of a node each. What readers prefer of them is kept as a column, for every look-up asks.

Dropping a node marks its slots, O(1); a slot's number is used again only when none of its replicas is left.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from daemons.core.ids import HostId, NodeId
from daemons.protocol.block import Tier
from daemons.protocol.packed import BlockPlace
from daemons.protocol.segment import RegionRef

Place = tuple[NodeId, Tier]
TIERS: Final[tuple[Tier, ...]] = ("device", "dram", "ssd", "object")
"""The faster first."""

RANKS: Final = 2 * len(TIERS)
"""A replica of a suspect node comes after all others."""

UNREADABLE: Final = -100
"""Rank of a slot that readers are not sent to."""

NO_HOST: Final = -1
"""Of a slot that nobody holds blocks in, and of a dropped one."""


@dataclass(slots=True)
class Slot:
    """`pending_bytes` were named as victims and not freed yet, until `pending_until_s`."""

    node: NodeId
    host_id: HostId
    region: RegionRef
    control: str = ""
    tier: Tier = "dram"
    is_dropped: bool = False
    is_kept: bool = False
    """Dropped, but not to be swept: its replicas count until the node is back or given up."""
    is_suspect: bool = False
    has_lower: bool = False
    """Victims are written to a lower tier first, and can be read meanwhile."""
    num_replicas: int = 0
    num_bytes: int = 0
    pending_bytes: int = 0
    pending_until_s: float = 0.0
    regions: dict[int, RegionRef] = field(default_factory=dict)
    """Of the node's segments in DRAM beside the first, by number."""

    @property
    def place(self) -> Place:
        return self.node, self.tier

    @property
    def is_swept(self) -> bool:
        """Its replicas are to be cleaned up."""
        return self.is_dropped and not self.is_kept


class SlotTable:
    """Change a slot's flags only by the methods here. The columns have one entry more: of a replica in no slot (-1)."""

    def __init__(self) -> None:
        self.by_place: dict[Place, int] = {}
        """Those that are not dropped."""
        self.rank: NDArray[np.intp] = np.full(1, UNREADABLE, np.intp)
        """Higher is better; leaves room for one point more."""
        self.named_rank: NDArray[np.intp] = np.full(1, UNREADABLE, np.intp)
        """The same for replicas that were named as victims."""
        self.host_ids: list[HostId] = []
        self.host: NDArray[np.intp] = np.full(1, NO_HOST, np.intp)
        """Which of `host_ids` a slot is on; NO_HOST for a dropped one."""
        self.are_all_up = True
        """None is dropped or suspect."""
        self._slots: list[Slot | None] = []
        self._places: dict[int, BlockPlace] = {}
        self._near: dict[HostId, NDArray[np.intp]] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, number: int) -> Slot:
        slot = self._slots[number]
        assert slot is not None, "a slot in use is open"
        return slot

    def __iter__(self) -> Iterator[tuple[int, Slot]]:
        """All that are open, dropped ones too."""
        return ((number, slot) for number, slot in enumerate(self._slots) if slot is not None)

    def open(self, opened: Slot) -> int:
        number = next((n for n, held in enumerate(self._slots) if held is None), len(self._slots))
        self._slots[number : number + 1] = [opened]
        self.by_place[opened.place] = number
        self._refresh()
        return number

    def find(self, place: Place) -> Slot | None:
        number = self.by_place.get(place)
        return None if number is None else self[number]

    def drop(self, number: int) -> None:
        slot = self[number]
        del self.by_place[slot.place]
        slot.is_dropped = True
        if slot.num_replicas == 0:
            self._slots[number] = None
        self._refresh()

    def set_suspect(self, number: int, is_suspect: bool) -> None:
        if self[number].is_suspect != is_suspect:
            self[number].is_suspect = is_suspect
            self._refresh()

    def set_regions(self, number: int, regions: dict[int, RegionRef]) -> None:
        self[number].regions = regions
        self._refresh()

    def add_lower(self, number: int) -> None:
        """Victims of this slot go to a lower one from now on."""
        self[number].has_lower = True
        self._refresh()

    def count(self, number: int, num_replicas: int, num_bytes: int) -> None:
        """So many more, or fewer; closes a dropped slot with its last replica."""
        slot = self[number]
        slot.num_replicas += num_replicas
        slot.num_bytes += num_bytes
        if slot.is_dropped and slot.num_replicas == 0:
            self._slots[number] = None
            self._refresh()

    def numbers_of(self, node: NodeId) -> list[int]:
        """Of its tiers, the fastest first."""
        found = (self.by_place.get((node, tier)) for tier in TIERS)
        return [number for number in found if number is not None]

    def described(self, number: int) -> BlockPlace:
        """As readers are told."""
        place = self._places.get(number)
        if place is None:
            slot = self[number]
            place = self._places[number] = BlockPlace(
                node=slot.node,
                region=slot.region,
                host_id=slot.host_id,
                tier=slot.tier,
                control=slot.control if slot.tier != "dram" else "",
                regions=slot.regions,
            )
        return place

    def rank_near(self, host_id: HostId | None) -> NDArray[np.intp]:
        """`rank` for a reader on this host; a dropped slot is nobody's."""
        if host_id is None:
            return self.rank
        ranks = self._near.get(host_id)
        if ranks is None:
            is_near = [
                slot is not None and not slot.is_dropped and slot.host_id == host_id
                for slot in self._slots
            ]
            ranks = self._near[host_id] = self.rank + np.array([*is_near, False], np.intp)
        return ranks

    def is_live(self) -> NDArray[np.bool_]:
        """Of each slot; not of no slot."""
        live = [slot is not None and not slot.is_dropped for slot in self._slots]
        return np.array([*live, False], bool)

    def is_on(self, node: NodeId) -> NDArray[np.bool_]:
        """The same of one node's."""
        found = np.zeros(len(self._slots) + 1, bool)
        found[self.numbers_of(node)] = True
        return found

    def _refresh(self) -> None:
        self._near.clear()
        self._places.clear()
        self.rank = np.array([*map(_rank, self._slots), UNREADABLE], np.intp)
        self.are_all_up = not any(s and (s.is_dropped or s.is_suspect) for s in self._slots)
        self.named_rank = np.array([*map(_named_rank, self._slots), UNREADABLE], np.intp)
        live = [slot.host_id if slot and not slot.is_dropped else None for slot in self._slots]
        self.host_ids = sorted({host_id for host_id in live if host_id is not None})
        numbers: dict[HostId | None, int] = {h: n for n, h in enumerate(self.host_ids)}
        self.host = np.array([*(numbers.get(h, NO_HOST) for h in live), NO_HOST], np.intp)


def _rank(slot: Slot | None) -> int:
    if slot is None or slot.is_dropped:
        return UNREADABLE
    return RANKS - 2 * TIERS.index(slot.tier) - RANKS * slot.is_suspect


def _named_rank(slot: Slot | None) -> int:
    if slot is None or slot.is_dropped or not slot.has_lower:
        return UNREADABLE
    return 1 - RANKS * slot.is_suspect
