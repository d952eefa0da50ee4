"""The replicas of a reply's blocks beside the ones it names, folded small for the wire."""

from collections.abc import Sequence

from daemons.protocol.block import BlockLocation, ReplicaPlace, SpareReplica, Spares
from daemons.protocol.segment import place_of
from daemons.store.block_table import NO_ROW
from daemons.store.directory import Directory
from daemons.store.replica_table import Slot

MAX_SPARES = 2
"""For each block: who fails with three replicas has a miss."""


def spares_of(
    directory: Directory, rows: Sequence[int], chosen: Sequence[BlockLocation], *, now_s: float
) -> Spares | None:
    """Of these blocks' replicas those that are not the chosen one but have its bytes; None where there are none.

    Only looks. Written over the columns, for every plan runs it per block.
    """
    heads, table = directory.blocks.head, directory.replicas
    following, slots, slot_of = table.next, table.slots, table.slot
    numbers: dict[tuple[int, int], int] = {}
    """By slot and segment."""
    found: list[SpareReplica] = []
    for index, row in enumerate(rows):
        replica = heads[row]
        if following[replica] == NO_ROW:
            continue
        first, others = chosen[index], []
        while replica != NO_ROW:
            slot = slots[slot_of[replica]]
            if (
                slot is not None
                and not slot.is_dropped
                and slot.tier == "dram"  # nothing that is to be staged first
                and (slot.node != first.node or first.tier != "dram")
                and table.named_until_s[replica] <= now_s
                and table.seal_checksum[replica] == first.seal_checksum
                and table.length[replica] == first.length
            ):
                others.append((slot.is_suspect, replica))
            replica = following[replica]
        for _, spare in sorted(others)[:MAX_SPARES]:
            number, offset = place_of(table.offset[spare])
            place = numbers.setdefault((slot_of[spare], number), len(numbers))
            found.append(SpareReplica(block=index, place=place, offset=offset))
    if not found:
        return None
    return Spares(
        places=[_place(slots[of_slot], number) for of_slot, number in numbers], replicas=found
    )


def _place(slot: Slot | None, number: int) -> ReplicaPlace:
    assert slot is not None, "a replica's slot is open"
    return ReplicaPlace(
        node=slot.node, region=slot.regions.get(number, slot.region), host_id=slot.host_id
    )
