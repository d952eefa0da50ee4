"""What lies below DRAM: how long it will take to come up, and that it begins while the request waits in its queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from daemons.core.ids import BlockHash, NodeId
from daemons.mc_master.state import MasterState
from daemons.protocol.block import Tier
from daemons.protocol.packed import BlockLocations
from daemons.protocol.request_list import Ahead
from daemons.protocol.tiers import StageAhead
from daemons.store.directory.columns import Rows
from daemons.store.directory.slot_table import Place

_SPARE_S: Final = 10.0
_NAMED: Final = 8
"""Blocks of each kind that a request keeps by name."""
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


def stage_ahead(state: MasterState, matched: BlockLocations, starts_in_s: float) -> list[Ahead]:
    """Tell the nodes; best effort, for the reader asks for the same in any case. What they were told."""
    if all(place.tier == "dram" for place in matched.places.values()):
        return []
    hashes_by_place: dict[Place, list[BlockHash]] = {}
    for location in matched.unpack():
        if location.tier != "dram":
            hashes_by_place.setdefault((location.node, location.tier), []).append(location.hash)
    told = []
    for (node, tier), hashes in hashes_by_place.items():
        member = state.membership.get(node)
        hold_ms = int(1000 * (min(starts_in_s, 60.0) + _SPARE_S))
        message = StageAhead(hashes=hashes, hold_ms=hold_ms)
        if member is not None and state.out.notify(member, message):
            state.metrics.staged_blocks.labels(tier).inc(len(hashes))
            told.append(ahead("staged", hashes, node=node, tier=tier))
    return told


def ahead(
    what: Literal["staged", "replicated"],
    hashes: Sequence[BlockHash],
    *,
    node: NodeId | None = None,
    tier: Tier | None = None,
) -> Ahead:
    """As `request explain` shows it."""
    first = list(hashes[:_NAMED])
    return Ahead(what=what, num_blocks=len(hashes), hashes=first, node=node, tier=tier)
