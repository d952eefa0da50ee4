"""How memory is named between processes: where its owner can be reached, and which bytes of it are meant."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from daemons.core.ids import Epoch, HostId
from daemons.protocol.base import Message, Record

SEGMENT_SPAN_BITS: Final = 44
"""A node tells the places in its DRAM segment of a number as offsets from number << 44 on: 16 TiB each."""
MAX_SEGMENT_NUMBER: Final = (1 << 16) - 1
SegmentStatus = Literal["allocating", "mounted", "leaving", "failed"]


def told_offset(number: int, offset: int) -> int:
    """Of a place in the segment of this number."""
    return number << SEGMENT_SPAN_BITS | offset


def place_of(told: int) -> tuple[int, int]:
    """(number of the segment, offset there)."""
    return told >> SEGMENT_SPAN_BITS, told & ((1 << SEGMENT_SPAN_BITS) - 1)


class DataAddress(Record, frozen=True, kw_only=True):
    """Where a process's Transfer Engine can be reached.

    `unix_path` serves peers with the same `host_id` (they map regions), `tcp` ("host:port") all others; `rdma`
    ("host:port", empty without RDMA) is where queue pairs are set up. `epoch` is the life of the process: a
    descriptor of an older one is refused. `tcp_more` are further addresses of the same data port, on other NICs.
    """

    host_id: HostId
    unix_path: str
    tcp: str
    epoch: Epoch
    rdma: str = ""
    tcp_more: list[str] = msgspec.field(default_factory=list)


class RegionRef(Record, frozen=True, kw_only=True):
    """A registered region of one process."""

    address: DataAddress
    region_id: int
    size_bytes: int


class SegmentDescription(Record, frozen=True, kw_only=True):
    """Memory a cache node lends to the pool."""

    region: RegionRef
    path: str
    capacity_bytes: int
    number: int = 0
    """Its blocks are told at offsets from number << 44 on."""


def regions_of(segments: Sequence[SegmentDescription]) -> dict[int, RegionRef]:
    """By number."""
    return {segment.number: segment.region for segment in segments}


class Strided(Record, frozen=True, kw_only=True):
    """`num_rows` runs of `row_bytes`, `stride_bytes` apart, the first at `offset`; one run when num_rows is 1."""

    offset: int
    row_bytes: int
    num_rows: int = 1
    stride_bytes: int = 0

    @property
    def length(self) -> int:
        return self.row_bytes * self.num_rows

    @property
    def end(self) -> int:
        """First byte past the last run."""
        return self.offset + self.stride_bytes * (self.num_rows - 1) + self.row_bytes


class Generation(Record, frozen=True, kw_only=True):
    """The reuse counter that guards a source range: word `index` of the owner's table must still be `value`.

    The table is itself a region (`region_id` of the same owner) of little-endian u64 words. The owner raises a
    word before it reuses or cancels what the word guards; a puller reads it before and after the bytes.
    """

    region_id: int
    index: int
    value: int


class GenerationWord(Record, frozen=True, kw_only=True):
    """Where the counter of a Generation lies."""

    region_id: int
    index: int


class Grant(Record, frozen=True, kw_only=True):
    """Opens these ranges of one region for one operation; what a peer without the secret sends with its request.

    `expires_ms` is on the owner's clock, which nobody else can compare. `generation` may be asked for along with the
    bytes. `mac` is made with the key of the region's epoch.
    """

    operation: Literal["read", "write"]
    ranges: list[Strided]
    expires_ms: int
    generation: GenerationWord | None
    mac: bytes


class RegionGrant(Record, frozen=True, kw_only=True):
    """A grant in a reply, for the locations there that lie in this region."""

    epoch: Epoch
    region_id: int
    grant: Grant


class Source(Record, frozen=True, kw_only=True):
    """Bytes that a daemon may READ while the generation holds; it knows the cluster's secret, so no grant is here."""

    region: RegionRef
    ranges: Strided
    generation: Generation | None = None


class ListSegments(Message, frozen=True, kw_only=True):
    """Operator to cache node: the DRAM segments it lends, or is about to."""


class SegmentState(Record, frozen=True, kw_only=True):
    """One segment as its node sees it. `why`: what it waits for, or why it failed."""

    number: int
    """0: that of the node's configuration; others are never used twice."""
    path: str
    status: SegmentStatus
    capacity_bytes: int
    used_bytes: int = 0
    num_blocks: int = 0
    """Sealed in it; while it leaves, those that are still to go."""
    done_bytes: int = 0
    """While it is allocated: how much of it is there."""
    why: str = ""


class ListSegmentsReply(Message, frozen=True, kw_only=True):
    segments: list[SegmentState]


class AddSegment(Message, frozen=True, kw_only=True):
    """Operator to cache node: lend one more segment, and again after each restart.

    Answered at once; it is allocated in the background. `directory` is on a tmpfs or hugetlbfs; empty: where the
    node's first segment is.
    """

    size_bytes: int
    directory: str = ""


class RemoveSegment(Message, frozen=True, kw_only=True):
    """Operator to cache node: give this segment back once its blocks are elsewhere; asked again it says how far."""

    number: int


class SegmentReply(Message, frozen=True, kw_only=True):
    """To AddSegment and RemoveSegment."""

    segment: SegmentState
