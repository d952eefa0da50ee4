"""Grants in replies: the master signs for the nodes it names, with the key each has from it, or derives from the
cluster's secret.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemons.core.ids import Epoch, NodeId
from daemons.protocol.block import BlockLocation
from daemons.protocol.segment import RegionGrant, Strided
from daemons.store.segment.runs import runs_of
from daemons.transfer.capability import MAX_RANGES, CapabilityKey


@dataclass(slots=True)
class _Owner:
    epoch: Epoch
    ahead_s: float
    """Of its clock before ours; late by the time its word took to come here, so that grants end early."""
    public: str


class ReplyGrants:
    """One MAC for each region of a reply. Without a secret there are none, and nobody needs them.

    `secret` is what an owner's grants are signed by, from its public key where there are keys.
    """

    def __init__(self, secret: Callable[[str], bytes] | None) -> None:
        self._secret = secret
        self._owners: dict[NodeId, _Owner] = {}

    def hear(
        self, node: NodeId, epoch: Epoch, ticks_ms: int, *, now_s: float, public: str = ""
    ) -> None:
        """Its clock, as it said it on the way here: what came fastest counts."""
        ahead_s = ticks_ms / 1000 - now_s
        owner = self._owners.get(node)
        if owner is None or owner.epoch != epoch:
            self._owners[node] = _Owner(epoch, ahead_s, public)
        else:
            owner.ahead_s = max(owner.ahead_s, ahead_s)

    def forget(self, node: NodeId) -> None:
        self._owners.pop(node, None)

    def sign(
        self, locations: Sequence[BlockLocation], *, now_s: float, ttl_s: float
    ) -> list[RegionGrant]:
        """Open the payload and trailer of each location for a READ."""
        if self._secret is None:
            return []
        runs: dict[tuple[NodeId, Epoch, int], list[Strided]] = {}
        for run in runs_of(locations):
            at = locations[run.first]
            key = (at.node, run.region.address.epoch, run.region.region_id)
            slot_bytes = at.length + at.trailer_bytes
            runs.setdefault(key, []).append(run.rows(0, slot_bytes, run.num_blocks))
        signed: list[RegionGrant] = []
        for (node, epoch, region_id), ranges in runs.items():
            owner = self._owners.get(node)
            if owner is None or owner.epoch != epoch:
                continue  # it is gone, or about to say where its blocks are now
            their_now_s = now_s + owner.ahead_s
            secret = self._secret(owner.public)
            signer = CapabilityKey(epoch, secret, itertools.repeat(their_now_s).__next__)
            for start in range(0, len(ranges), MAX_RANGES):
                grant = signer.grant(region_id, ranges[start : start + MAX_RANGES], "read", ttl_s)
                signed.append(RegionGrant(epoch=epoch, region_id=region_id, grant=grant))
        return signed
