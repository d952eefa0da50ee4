"""/etc/mooncake/mc-cachenode.toml"""

from typing import Annotated, Literal

import msgspec

from daemons.config.base import Section
from daemons.config.common import (
    Count,
    DirectoryOrNone,
    LogSection,
    MasterLinkSection,
    Metrics,
    Name,
    Seconds,
    SecuritySection,
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
    domain: str = ""
    """What it shares the fate of, such as a rack: replicas of a block go to distinct domains. Empty: the host."""
    state_dir: str = ""
    """For the list of segments that mcctl segment add has added and, with an object tier, the deletes that its store
    has not heard of: on a disk, which outlives a power failure. Empty: $STATE_DIRECTORY under systemd, else
    ~/.local/state/mooncake/ID."""


class SegmentSection(Section, frozen=True, kw_only=True):
    """The memory this node lends."""

    size: Size = "2GiB"
    directory: DirectoryOrNone = "/dev/shm"
    """A tmpfs; the segment is one file in it, fully allocated at start, with the index of its blocks beside it. Empty:
    memory without a file, which systemd keeps from one process of the unit to the next and frees when it is stopped."""
    index_directory: DirectoryOrNone = ""
    """Another tmpfs for the index, where `directory` is a hugetlbfs: files there can be mapped, but not written to.
    Empty: beside the segment."""
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
    room_wait_s: Annotated[float, msgspec.Meta(ge=0)] = 0.5
    """A put into full memory waits so long for others to leave, and is then refused with what stays."""
    drain_s: Seconds = 10.0
    """Pulls that still run so long after SIGTERM are abandoned; the unit's TimeoutStopSec must be longer."""


FlushMode = Literal["write-through", "write-back", "manual", "none"]


class SsdSection(Section, frozen=True, kw_only=True):
    """The tier below DRAM. Off while `directory` is empty."""

    directory: str = ""
    """On a local SSD, best with a filesystem that allows O_DIRECT (xfs, ext4); each node has a folder of its own in it.
    Its blocks are found again after every kind of stop, a host's too. Empty: no SSD tier."""
    capacity: Size = "64GiB"
    """Files in the directory never take more; the least used blocks are given up first."""
    bucket: Size = "256MiB"
    """Size of one file; a block must fit into it. Space is given back by whole files."""
    flush: FlushMode = "write-back"
    """When a block is written: once it is sealed, when DRAM needs its space, only by `mcctl cache flush`, or never."""
    flush_models: dict[str, FlushMode] = msgspec.field(default_factory=dict)
    """The same for single models, by name."""
    stage: Size = "256MiB"
    """Part of the segment that is kept for blocks on their way from lower tiers to readers; at most an eighth of it. Of
    a prefix as much is read as fits there and into what is free."""
    promote_uses: Count = 2
    """A block that was read from a lower tier so often stays in DRAM, even when others must leave for it."""
    read_workers: Threads = 4
    """Threads that read from the SSD."""


class ObjectSection(Section, frozen=True, kw_only=True):
    """The tier below DRAM and SSD, in a store with the API of S3. Off while `bucket` is empty."""

    bucket: str = ""
    """It must exist. Needs the [s3] extra. The node's blocks outlive its disks: a node of the same node.id finds them.
    Empty: no object tier."""
    endpoint: Annotated[str, msgspec.Meta(extra={"form": "url_or_empty"})] = ""
    """Of the store; empty for AWS."""
    region: str = "us-east-1"
    """As the store calls it; most others than AWS take any."""
    prefix: str = "mooncake"
    """Of all keys; another one for each cluster. Each node has a folder of its own under it."""
    credentials_file: str = ""
    """As ~/.aws/credentials: aws_access_key_id and aws_secret_access_key under [default]; open to the daemon's group at
    most. A name without a slash is a credential of the unit. Empty: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or
    what else AWS tools find on this machine."""
    capacity: Size = "256GiB"
    """Objects of this node never take more; what was not read for longest is given up first."""
    part: Size = "32MiB"
    """Size of one object, which holds many blocks."""
    flush: FlushMode = "write-back"
    """When a block is written: once it is sealed, when the tiers above need its space, only by `mcctl cache flush --to
    object`, or never."""
    flush_models: dict[str, FlushMode] = msgspec.field(default_factory=dict)
    """The same for single models, by name."""
    read_workers: Threads = 8
    """Threads that read from the store."""
    timeout_s: Seconds = 5.0
    """A store that sends nothing for so long has failed; it then rests for a second, and longer each further time."""


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
    ssd: SsdSection = msgspec.field(default_factory=SsdSection)
    object: ObjectSection = msgspec.field(default_factory=ObjectSection)
    report: ReportSection = msgspec.field(default_factory=ReportSection)
    transfer: TransferSection = msgspec.field(default_factory=TransferSection)
    security: SecuritySection = msgspec.field(default_factory=SecuritySection)
    log: LogSection = msgspec.field(default_factory=LogSection)
