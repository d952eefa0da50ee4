"""What lies below DRAM: how long it will take to come up, and that it begins while the request waits in its queue."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.state import MasterState
from daemons.protocol.block import StageAhead, Tier
from daemons.protocol.packed import BlockLocations
from daemons.store.columns import Rows
from daemons.store.slot_table import Place

_SPARE_S: Final = 10.0
_BYTES_PER_S: Final[Mapping[Tier, float]] = {
    "device": 1e10,
    "dram": 1e10,
    "ssd": 1e9,
    "object": 2e8,
}
"""Until a node has measured its own."""


@dataclass(frozen=True, slots=True)
class SlowPart:
    """As far as `num_fast` blocks all of a prefix is in DRAM; the rest would be there after `staging_s`."""

    num_fast: int
    staging_s: float


def slow_part(state: MasterState, rows: Rows, now_s: float) -> SlowPart:
    """By the rates that nodes measured; nodes work at the same time, each at all of its tiers."""
    directory = state.directory
    if not directory.has_lower:
        return SlowPart(len(rows), 0.0)
    places = directory.best_places(rows, now_s=now_s)
    num_fast = next((at for at, place in enumerate(places) if place[1] != "dram"), len(rows))
    bytes_by_place: dict[Place, int] = {}
    for row, place in zip(rows[num_fast:].tolist(), places[num_fast:], strict=True):
        if place[1] != "dram":
            num_bytes = directory.length_on(place, directory.blocks.hash_of(row))
            bytes_by_place[place] = bytes_by_place.get(place, 0) + num_bytes
    times_s = (num_bytes / _rate(state, place) for place, num_bytes in bytes_by_place.items())
    return SlowPart(num_fast, max(times_s, default=0.0))


def _rate(state: MasterState, place: Place) -> float:
    node, tier = place
    member = state.membership.get(node)
    usage = member.tiers.get(tier) if member is not None else None
    measured = usage.read_bytes_per_s if usage is not None else 0
    return measured or _BYTES_PER_S[tier]


def stage_ahead(state: MasterState, matched: BlockLocations, starts_in_s: float) -> None:
    """Tell the nodes; best effort, for the reader asks for the same in any case."""
    hashes_by_node: dict[NodeId, list[BlockHash]] = {}
    if all(place.tier == "dram" for place in matched.places.values()):
        return
    for location in matched.unpack():
        if location.tier != "dram":
            hashes_by_node.setdefault(location.node, []).append(location.hash)
    for node, hashes in hashes_by_node.items():
        member = state.membership.get(node)
        if member is not None:
            hold_ms = int(1000 * (min(starts_in_s, 60.0) + _SPARE_S))
            state.out.notify(member, StageAhead(hashes=hashes, hold_ms=hold_ms))
