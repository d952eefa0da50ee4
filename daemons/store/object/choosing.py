"""Which parts leave, and which are written together again. Pure."""

from collections.abc import Sequence

from daemons.store.object.catalog import Part


def choose_victim(parts: Sequence[Part]) -> Part | None:
    """The one that was not read for longest; among equals the oldest. Blocks are not chosen one by one: what shares a
    part was written together, and mostly belongs together.
    """
    return min(parts, key=lambda part: (part.used_s, part.part_id), default=None)


def choose_compaction(parts: Sequence[Part], part_bytes: int) -> list[Part]:
    """Parts that together fill one again: half-empty ones, and small ones of puts that had no company. Empty while it
    would gain less than half a part, or two small ones for one of useful size.
    """
    group: list[Part] = []
    live_bytes = 0
    for part in parts:
        if part.live_bytes < part_bytes // 2 and live_bytes + part.live_bytes <= part_bytes:
            group.append(part)
            live_bytes += part.live_bytes
    garbage_bytes = sum(part.num_bytes for part in group) - live_bytes
    is_worth = garbage_bytes >= part_bytes // 2 or (
        len(group) > 1 and live_bytes >= part_bytes // 2
    )
    return group if is_worth else []
