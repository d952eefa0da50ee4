"""The replicas of a reply's blocks beside the ones it names, folded small for the wire."""

import numpy as np

from daemons.protocol.lookup import ReplicaPlace, SpareReplica, Spares
from daemons.protocol.segment import place_of
from daemons.store.directory.columns import NO_ROW
from daemons.store.directory.directory import Directory
from daemons.store.directory.lookups import Taken

MAX_SPARES = 2
"""For each block: who fails with three replicas has a miss."""


def spares_of(directory: Directory, taken: Taken, *, now_s: float) -> Spares | None:
    """Of these blocks' replicas those that are not the chosen one but have its bytes; None where there are none.

    Only looks.
    """
    if not directory.tables.has_spares:
        return None
    table = directory.replicas
    heads = directory.blocks.head.values[taken.rows]
    with_more = np.flatnonzero(table.next.values[heads] != NO_ROW)
    numbers: dict[tuple[int, int], int] = {}
    """By slot and segment."""
    found: list[SpareReplica] = []
    for index in with_more.tolist():
        others = _others(directory, heads.item(index), taken.replicas.item(index), now_s)
        for _, spare in sorted(others)[:MAX_SPARES]:
            number, offset = place_of(table.number("offset", spare))
            place = numbers.setdefault((table.slot.values.item(spare), number), len(numbers))
            found.append(SpareReplica(block=index, place=place, offset=offset))
    if not found:
        return None
    return Spares(places=[_place(directory, *each) for each in numbers], replicas=found)


def _others(directory: Directory, head: int, chosen: int, now_s: float) -> list[tuple[bool, int]]:
    """(whether its node is suspect, row)"""
    table, slots = directory.replicas, directory.slots
    first = slots[table.slot.values.item(chosen)]
    bytes_of = [table.number(name, chosen) for name in ("seal_checksum", "length")]
    found = []
    for replica in table.chain(head):
        slot = slots[table.slot.values.item(replica)]
        if (
            not slot.is_dropped
            and slot.tier == "dram"  # nothing that is to be staged first
            and (slot.node != first.node or first.tier != "dram")
            and table.named_until_s.values.item(replica) <= now_s
            and bytes_of == [table.number(name, replica) for name in ("seal_checksum", "length")]
        ):
            found.append((slot.is_suspect, replica))
    return found


def _place(directory: Directory, of_slot: int, number: int) -> ReplicaPlace:
    slot = directory.slots[of_slot]
    region = slot.regions.get(number, slot.region)
    return ReplicaPlace(node=slot.node, region=region, host_id=slot.host_id)
