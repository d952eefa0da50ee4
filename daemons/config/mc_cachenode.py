"""/etc/mooncake/mc-cachenode.toml"""

import msgspec

from daemons.config.base import Section
from daemons.config.common import (
    Count,
    Directory,
    LogSection,
    MasterLinkSection,
    Metrics,
    Name,
    Seconds,
    Size,
    Threads,
    Told,
    TransferSection,
)


class NodeSection(Section, frozen=True, kw_only=True):
    """Who this node is and where it listens."""

    id: Name = "cachenode"
    listen: Told = "tcp://127.0.0.1:7710"
    metrics: Metrics = "127.0.0.1:9710"


class SegmentSection(Section, frozen=True, kw_only=True):
    """The memory this node lends."""

    size: Size = "2GiB"
    directory: Directory = "/dev/shm"
    """A tmpfs; the segment is one file in it, fully allocated at start, with the index of its blocks beside it."""
    keep: bool = True
    """Leave segment and index there when the node ends, for the next start with the same node.id, size and directory:
    its blocks are back after a crash, a restart or an upgrade. The memory is taken until the files are removed. With
    false they go with the node, and no index is written."""
    prefault: bool = False
    """Touch all pages at start, so that the first put of each is as fast as the next."""


class CopySection(Section, frozen=True, kw_only=True):
    """The workers that pull blocks."""

    workers: Threads = 2
    max_queued_blocks: Count = 4096
    """Beyond it a put is refused with a time to come back."""
    drain_s: Seconds = 10.0
    """Pulls that still run so long after SIGTERM are abandoned; the unit's TimeoutStopSec must be longer."""


class ReportSection(Section, frozen=True, kw_only=True):
    """Seals and frees told to the master."""

    interval_s: Seconds = 0.005
    orphan_after_s: Seconds = 10.0
    """Without a master for so long, a full node evicts by its own order."""


class CachenodeConfig(Section, frozen=True, kw_only=True):
    """mc-cachenode.toml"""

    node: NodeSection = msgspec.field(default_factory=NodeSection)
    master: MasterLinkSection = msgspec.field(default_factory=MasterLinkSection)
    segment: SegmentSection = msgspec.field(default_factory=SegmentSection)
    copy: CopySection = msgspec.field(default_factory=CopySection)
    report: ReportSection = msgspec.field(default_factory=ReportSection)
    transfer: TransferSection = msgspec.field(default_factory=TransferSection)
    log: LogSection = msgspec.field(default_factory=LogSection)
