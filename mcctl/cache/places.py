"""Where blocks are, as text of one line: the pool's replicas first, which others can read, then what arenas hold."""

from collections.abc import Iterable


def places_text(places: Iterable[tuple[str, str]]) -> str:
    """Of (node, tier); the tier is named where it is not DRAM."""
    ordered = sorted(places, key=lambda place: place[1] == "device")
    return ", ".join(node if tier == "dram" else f"{node} ({tier})" for node, tier in ordered)
