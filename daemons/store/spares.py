"""The replicas of a reply's blocks beside the ones it names: folded small for the wire, and unfolded by the reader."""

from collections.abc import Sequence

import msgspec

from daemons.core.ids import NodeId
from daemons.protocol.block import BlockLocation, ReplicaPlace, SpareReplica, Spares

MAX_SPARES = 2
"""For each block: who fails with three replicas has a miss."""


def fold(
    chosen: Sequence[BlockLocation], replicas: Sequence[Sequence[BlockLocation]]
) -> Spares | None:
    """Of each block's `replicas` those that are not the chosen one but have its bytes; None where there are none."""
    places: dict[tuple[NodeId, int, int], int] = {}
    folded = Spares(places=[], replicas=[])
    for index, (first, of_block) in enumerate(zip(chosen, replicas, strict=True)):
        others = [at for at in of_block if _is_copy(at, first)][:MAX_SPARES]
        for at in others:
            key = (at.node, at.region.address.epoch, at.region.region_id)
            if key not in places:
                places[key] = len(folded.places)
                place = ReplicaPlace(node=at.node, region=at.region, host_id=at.host_id)
                folded.places.append(place)
            folded.replicas.append(SpareReplica(block=index, place=places[key], offset=at.offset))
    return folded if folded.replicas else None


def replicas_of(
    chosen: Sequence[BlockLocation], spares: Spares | None
) -> list[list[BlockLocation]]:
    """Each block's replicas, the chosen one first. What makes no sense in `spares` is passed over."""
    replicas = [[at] for at in chosen]
    if spares is None:
        return replicas
    for spare in spares.replicas:
        if 0 <= spare.block < len(replicas) and 0 <= spare.place < len(spares.places):
            place = spares.places[spare.place]
            of_block = replicas[spare.block]
            other = msgspec.structs.replace(
                of_block[0],
                node=place.node,
                region=place.region,
                host_id=place.host_id,
                tier="dram",
                control="",
                offset=spare.offset,
            )
            of_block.append(other)
    return replicas


def _is_copy(at: BlockLocation, first: BlockLocation) -> bool:
    """Where a READ is all it takes: nothing that is to be staged first."""
    is_other = at.node != first.node or at.tier != first.tier
    return (
        is_other
        and at.tier == "dram"
        and (at.seal_checksum, at.length, at.num_layers)
        == (
            first.seal_checksum,
            first.length,
            first.num_layers,
        )
    )
