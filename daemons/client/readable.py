"""Which of the replicas that a reply names can be read together, and by which grants."""

from collections.abc import Sequence

from daemons.protocol.block import BlockLocation
from daemons.protocol.segment import Grant, RegionGrant
from daemons.store.segment.runs import BlockRun
from daemons.transfer.capability import MAX_RANGES


def of_one_shape(locations: Sequence[BlockLocation]) -> list[BlockLocation]:
    """The leading ones that agree with the first and are possible at all."""
    good: list[BlockLocation] = []
    for location in locations:
        shape = (location.length, location.num_layers, location.trailer_bytes)
        if good and shape != (good[0].length, good[0].num_layers, good[0].trailer_bytes):
            break
        if location.num_layers <= 0 or location.length <= 0 or location.trailer_bytes <= 0:
            break
        if location.length % (2 * location.num_layers):
            break
        good.append(location)
    return good


def grants_of(runs: Sequence[BlockRun], grants: Sequence[RegionGrant]) -> dict[int, Grant]:
    """For each block the grant that opens its run: each has room for so many runs of its region."""
    by_region: dict[tuple[int, int], list[Grant]] = {}
    for each in grants:
        by_region.setdefault((each.epoch, each.region_id), []).append(each.grant)
    seen: dict[tuple[int, int], int] = {}
    found: dict[int, Grant] = {}
    for run in runs:
        key = (run.region.address.epoch, run.region.region_id)
        number = seen.get(key, 0)
        seen[key] = number + 1
        of_region = by_region.get(key, [])
        if number // MAX_RANGES < len(of_region):
            grant = of_region[number // MAX_RANGES]
            found.update(dict.fromkeys(range(run.first, run.first + run.num_blocks), grant))
    return found


def same_bytes(first: BlockLocation, replicas: Sequence[BlockLocation]) -> list[BlockLocation]:
    """Those with the same bytes: the seal of one is the seal of all."""
    name = _identity(first)
    return [first, *(at for at in replicas[1:] if _identity(at) == name)]


def _identity(at: BlockLocation) -> tuple[bytes, int, int, int, int]:
    return at.hash, at.seal_checksum, at.length, at.num_layers, at.trailer_bytes
