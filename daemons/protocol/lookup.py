"""Look-ups of blocks at the master: how much of a prefix is sealed, and where; every replica of some blocks."""

import msgspec

from daemons.core.ids import HostId, NodeId
from daemons.protocol.base import Message, Record
from daemons.protocol.block import BlockLocation, Hashes
from daemons.protocol.packed import BlockLocations
from daemons.protocol.segment import RegionGrant, RegionRef


class ReplicaPlace(Record, frozen=True, kw_only=True):
    """A DRAM segment that holds spare replicas."""

    node: NodeId
    region: RegionRef
    host_id: HostId


class SpareReplica(Record, frozen=True, kw_only=True):
    """One more replica of block `block` of the same reply, with the same bytes: at `offset` of place `place`."""

    block: int
    place: int
    offset: int


class Spares(Record, frozen=True, kw_only=True):
    """For a reader whose first choice fails. Few blocks have any, so they are named apart."""

    places: list[ReplicaPlace]
    replicas: list[SpareReplica]


class Match(Message, frozen=True, kw_only=True):
    """To the master: how long a prefix of this chain is sealed, and where. Leases what it names."""

    hashes: Hashes
    lease_ms: int = 10_000
    near: HostId | None = None
    wants_grants: bool = False
    """For readers that are no daemons of the cluster."""


class MatchReply(Message, frozen=True, kw_only=True):
    locations: BlockLocations
    grants: list[RegionGrant] = msgspec.field(default_factory=list)
    """As wanted, for as long as the lease: for each region in order, each opens the next 512 runs of its locations."""
    spares: Spares | None = None


class Locate(Message, frozen=True, kw_only=True):
    """To the master: every replica of each of these, in order; an unknown hash has an empty list.

    With `lease_ms` 0 it only looks: no lease, no recency (inspection never changes what is evicted next).
    """

    hashes: Hashes
    lease_ms: int = 10_000
    wants_grants: bool = False
    wants_devices: bool = False
    """Also the instances that hold a block in their KV arenas."""


class LocateReply(Message, frozen=True, kw_only=True):
    locations: BlockLocations
    """One block's after the other's."""
    counts: list[int]
    """How many each block has."""
    grants: list[RegionGrant] = msgspec.field(default_factory=list)
    """As in MatchReply, for those in DRAM: the first of each block in order, then the second of each, and so on."""

    devices: dict[int, list[NodeId]] = msgspec.field(default_factory=dict)
    """As wanted, by index: instances that hold the block in their KV arenas, where only they themselves read it."""

    def unpack(self) -> list[list[BlockLocation]]:
        """The replicas of each block."""
        return self.locations.unpack_groups(self.counts)
