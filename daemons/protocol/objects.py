"""Named objects: reserving a name before a put, finding, listing and deleting names. Their bytes are blocks.

An object is the block under the name's key (name_hash.py). A large one has a manifest there, and its chunks are
blocks of their own.
"""

from enum import StrEnum
from typing import Literal

import msgspec

from daemons.core.ids import HostId, NodeId
from daemons.protocol.base import Message, Record
from daemons.protocol.block import BlockLocation
from daemons.protocol.request import PutTarget
from daemons.protocol.segment import RegionGrant


class NameState(StrEnum):
    """Absent only where it is sure: unreachable objects are on nodes that are suspect, dead or away; a master that is
    rebuilding its directory has not heard of all yet. True only where it is present.
    """

    ABSENT = "absent"
    PRESENT = "present"
    UNREACHABLE = "unreachable"
    REBUILDING = "rebuilding"

    def __bool__(self) -> bool:
        return self is NameState.PRESENT


NAME_STATES: tuple[NameState, ...] = tuple(NameState)
"""In a reply one byte a name, the index in here."""

ReserveStatus = Literal[
    "reserved", "sealed", "being_written", "waits_for_room", "unreachable", "rebuilding", "lost"
]


class NameToReserve(Record, frozen=True, kw_only=True):
    """`version` renews a reservation that this put holds already; 0 asks for one."""

    name: bytes
    value_bytes: int
    version: int = 0


class ReserveNames(Message, frozen=True, kw_only=True):
    """To the master, before a put: the version of each name, and where to put. Held for `hold_ms` or until sealed.

    `replaces`: a version above the sealed one; else a sealed name is answered with where it is. `takes_turns`: the
    client knows `waits_for_room`, which a large value may have to until others are put. It asks again within a second,
    or loses its place, and puts first what else it was given.
    """

    namespace: bytes
    names: list[NameToReserve]
    replaces: bool = False
    hold_ms: int = 15_000
    near: HostId | None = None
    exclude: list[NodeId] = msgspec.field(default_factory=list)
    takes_turns: bool = False


class ReservedName(Record, frozen=True, kw_only=True):
    """`location` where it is sealed already; `version` is its version then. `why`: what it waits for, or lost it."""

    status: ReserveStatus
    version: int = 0
    location: BlockLocation | None = None
    why: str = ""


class ReserveNamesReply(Message, frozen=True, kw_only=True):
    """`targets` in the order of preference; values beyond `chunk_bytes` are cut: every node has slots for those."""

    names: list[ReservedName]
    targets: list[PutTarget]
    chunk_bytes: int
    room_bytes: int | None = None
    """What an empty pool would hold: a larger value would only push out others. None: not known, or without end."""


class ReleaseNames(Message, frozen=True, kw_only=True):
    """To the master: these reservations are given up, nothing was put under them."""

    namespace: bytes
    names: list[NameToReserve]
    num_chunks: list[int] = msgspec.field(default_factory=list)
    """Of each name: so many chunks may have been put, and are of no use, for no manifest will follow."""


class LocateNames(Message, frozen=True, kw_only=True):
    """To the master: where each object is; as Locate."""

    namespace: bytes
    names: list[bytes]
    lease_ms: int = 10_000
    wants_grants: bool = False


class LocateNamesReply(Message, frozen=True, kw_only=True):
    """`states` has one byte a name; the lists are in the same order, empty where nothing can be read."""

    states: bytes
    replicas: list[list[BlockLocation]]
    value_bytes: list[int]
    grants: list[RegionGrant] = msgspec.field(default_factory=list)


class ExistNames(Message, frozen=True, kw_only=True):
    """To the master: the state of each name. Only looks: no lease, no recency."""

    namespace: bytes
    names: list[bytes]


class ExistNamesReply(Message, frozen=True, kw_only=True):
    states: bytes


class DeleteNames(Message, frozen=True, kw_only=True):
    """To the master: these are not to come back. Answered when the nodes logged it, or shortly before the deadline."""

    namespace: bytes
    names: list[bytes]


class DeleteNamesReply(Message, frozen=True, kw_only=True):
    """One state a name as it was before; `num_unconfirmed` of the nodes that should have logged it did not answer."""

    states: bytes
    num_unconfirmed: int = 0


class ListNames(Message, frozen=True, kw_only=True):
    """Pages through the names of a namespace, in no order; `cursor` is that of the page before, 0 at first."""

    namespace: bytes
    prefix: bytes = b""
    cursor: int = 0
    limit: int = 1000


class ListedName(Record, frozen=True, kw_only=True):
    name: bytes
    value_bytes: int
    version: int
    nodes: list[NodeId]
    age_s: float
    idle_s: float


class ListNamesReply(Message, frozen=True, kw_only=True):
    """`cursor` None: there are no more."""

    names: list[ListedName]
    cursor: int | None


class NamespaceStat(Record, frozen=True, kw_only=True):
    """One namespace's share of the pool."""

    namespace: bytes
    num_names: int
    value_bytes: int


class StatNames(Message, frozen=True):
    """To the master: the namespaces that hold objects."""


class StatNamesReply(Message, frozen=True, kw_only=True):
    namespaces: list[NamespaceStat]
