"""A full node's own choice of what goes, for when the master has not chosen in time: the least recently put first."""

import time
from collections.abc import Callable
from itertools import islice
from typing import Final

from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash
from daemons.mc_cachenode.replica import Replica
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.protocol.block import BlockMeta
from daemons.store.segment.seal import trailer_length

_MAX_SCANNED: Final = 10_000
"""Oldest blocks looked at for one of the right size class."""

_MAX_EVICTIONS: Final = 64
"""Blocks given up for one allocation before it is refused after all."""


def make_room(
    replicas: ReplicaTable,
    length: int,
    num_layers: int,
    leaves_later: Callable[[Replica], bool] = lambda _: False,
    stays: Callable[[Replica], bool] = lambda _: False,
) -> list[BlockHash]:
    """Give up the least recently put blocks until a slot of this size is free; what went is returned.

    `leaves_later` says of each whether a lower tier takes it first, and frees it then: that makes no room yet.
    What `stays` names does not go.
    Of pinned ones the soft come last and the hard never. It may not be enough: the caller's next `begin` says so.
    """
    slots = replicas.segments.first.slots
    needed = length + trailer_length(num_layers)
    freed: list[BlockHash] = []
    if needed > replicas.segments.slab_bytes:
        return freed
    oldest = [r for r in _may_go(replicas) if not (r.segment.is_leaving or stays(r))]
    # One block of the same size class makes the slot; of another class it takes a whole slab of them.
    fitting = (r for r in oldest if slots.is_same_class(r.length + r.trailer_bytes, needed))
    same = next(fitting, None)
    for replica in [same] if same else oldest[:_MAX_EVICTIONS]:
        block_hash = replica.meta.hash
        if leaves_later(replica):
            continue
        replicas.free(block_hash)
        freed.append(block_hash)
        try:
            replicas.refuse_reserved(length)
            segment, offset = replicas.segments.allocate(needed)
            segment.free(offset)
        except Exhausted:
            continue
        return freed
    return freed


def is_of_same_put(meta: BlockMeta, version: int, replica: Replica) -> bool:
    """Another part of the object that this is a part of: it would be whole for nobody, and its put succeed."""
    return replica.version == version and _object_of(replica.meta) == _object_of(meta)


def _object_of(meta: BlockMeta) -> BlockHash:
    return meta.hash if meta.name else meta.parent


def _may_go(replicas: ReplicaTable) -> list[Replica]:
    """Those to give up first at the front."""
    now_s = time.monotonic()
    pinned = [
        (replicas.remembered.pins.find(replica.meta.hash, now_s=now_s), replica)
        for replica in islice(replicas.sealed(), _MAX_SCANNED)
        if not replica.num_holds and not replicas.is_replaced(replica.meta.hash)
    ]
    soft = [replica for pin, replica in pinned if pin is not None and not pin.is_hard]
    return [replica for pin, replica in pinned if pin is None] + soft
