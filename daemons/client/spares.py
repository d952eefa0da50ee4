"""The replicas of a reply's blocks beside the ones it names, unfolded."""

from collections.abc import Sequence

import msgspec

from daemons.protocol.block import BlockLocation
from daemons.protocol.lookup import Spares


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


def behind(spares: Spares | None, num_blocks: int) -> Spares | None:
    """The same for a reader that leaves out so many blocks at the beginning."""
    if spares is None or not num_blocks:
        return spares
    left = [
        msgspec.structs.replace(spare, block=spare.block - num_blocks)
        for spare in spares.replicas
        if spare.block >= num_blocks
    ]
    return msgspec.structs.replace(spares, replicas=left)
