"""/etc/mooncake/mc-master.toml"""

from typing import Annotated, Literal

import msgspec

from daemons.config.base import Section
from daemons.config.common import (
    Count,
    Fraction,
    Listen,
    LogSection,
    MasterSecuritySection,
    Metrics,
    Name,
    Seconds,
    Size,
)

Policy = Literal[
    "random", "least-loaded", "cache-aware", "kvcache-centric", "lmetric", "dynamo", "time"
]

Eviction = Literal["lru", "lfu", "depth"]

Admission = Literal["none", "current-load", "predicted-load", "objectives"]


class NodeSection(Section, frozen=True, kw_only=True):
    """Who this master is and where it listens."""

    id: Name = "master"
    listen: Listen = "tcp://127.0.0.1:7700"
    events: Listen = "tcp://127.0.0.1:7701"
    event_history: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 16384
    """Events kept for readers that come late or were too slow, every block counts; about 150 bytes each."""
    metrics: Metrics = "127.0.0.1:9700"
    """host:port of /metrics; empty for none."""
    state_dir: str = ""
    """Keeps the incarnation counter; empty for $STATE_DIRECTORY, else ~/.local/state/mooncake/<id>."""


class MembershipSection(Section, frozen=True, kw_only=True):
    """Beats are counted, not timed: a master that was stopped expires nobody."""

    beat_interval_s: Seconds = 0.5
    suspect_beats: Count = 2
    dead_beats: Count = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.suspect_beats >= self.dead_beats:
            raise ValueError(
                f"suspect_beats ({self.suspect_beats}) must be below dead_beats ({self.dead_beats})"
            )


class PoolSection(Section, frozen=True, kw_only=True):
    """The block pool."""

    high_watermark: Fraction = 0.95
    low_watermark: Fraction = 0.90
    lease_s: Seconds = 10.0
    """How long a match keeps blocks from eviction."""
    replicas: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    """How many copies each block should have, on distinct hosts; those after the first are made in the background."""
    rebuild_delay_s: Annotated[float, msgspec.Meta(ge=0, extra={"form": "seconds"})] = 60.0
    """A node that is gone for longer is given up: the replicas it held are then made anew. A restart takes less."""
    copy_rate: Size = "256MiB"
    """Bytes a second that each node receives at most when lost replicas are made anew, or a node is drained."""
    copy_in_flight: Size = "64MiB"
    """Bytes that each node is asked to copy at one time."""
    eviction: Eviction = "lru"
    """Which blocks go first: least recently used, least frequently used of late, or that with long ends before."""
    hot_uses: Annotated[int, msgspec.Meta(ge=0)] = 20
    """A block that is read so often within `hot_window_s` gets another replica, near its readers where there is room,
    and one more for each further so many; cool again it loses them. 0: none does."""
    hot_window_s: Seconds = 60.0
    """Reads of so long are counted together; a block is cool again when it had much fewer in one of these."""
    hot_replicas: Annotated[int, msgspec.Meta(ge=1, le=8)] = 3
    """The most that a hot block has, those of `replicas` counted."""
    spread_cold: bool = True
    """Whether a node that is nearly full gives what it would evict next to one that has much more room."""
    orphan_s: Seconds = 60.0
    """Chunks of an object that was never finished, or is gone, are freed after so long."""
    rebuild_s: Seconds = 30.0
    """After a restart an object that was not announced yet counts as missing once all known nodes have announced, at
    the latest after so long; until then asking for it gives `unavailable`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low_watermark >= self.high_watermark:
            raise ValueError(
                f"low_watermark ({self.low_watermark}) must be below high_watermark ({self.high_watermark})"
            )


class AccessSection(Section, frozen=True, kw_only=True):
    """Who may read blocks."""

    secret_file: str = ""
    """Without keys: the file that the cache nodes have as transfer.secret_file. Replies then carry grants for readers
    without it; with keys they always do. A name without a slash is a credential of the unit."""


class ConductorSection(Section, frozen=True, kw_only=True):
    """Who serves a request."""

    policy: Policy = "time"
    seed: int = 0
    balancing_threshold: Annotated[float, msgspec.Meta(ge=0)] = 1.5
    """kvcache-centric: fetch the best prefix when it is this many times the local one."""
    may_pull: bool = True
    """Whether a prefill may reuse KV that only other hosts hold."""
    max_queue_s: Seconds = 60.0
    """A request whose predicted queue is longer everywhere is rejected with 429."""
    admission: Admission = "objectives"
    """Which requests that are predicted to miss an objective are rejected with 429 before anything is computed."""
    ttft_slo_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """The objective for the time to the first token; 0: none.

    Never refused for it is a request that finds an idle prefill instance, however long its prompt.
    """
    tbt_slo_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """The objective for the time between tokens; 0: none."""
    shed_from: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.85
    """Share of an objective that requests of priority 0 may use up: the rest is kept for higher priorities and for
    tenants that had less. Near the TBT objective ever more are shed, large ones first."""
    costs_file: str = ""
    """TOML file of what instances cost until they have measured themselves, as `mcctl node costs` writes it; empty for
    that of a small model on a CPU."""
    request_log: Count = 1000
    """Plans kept for `mcctl request list`."""


class MasterConfig(Section, frozen=True, kw_only=True):
    """mc-master.toml"""

    node: NodeSection = msgspec.field(default_factory=NodeSection)
    membership: MembershipSection = msgspec.field(default_factory=MembershipSection)
    pool: PoolSection = msgspec.field(default_factory=PoolSection)
    access: AccessSection = msgspec.field(default_factory=AccessSection)
    conductor: ConductorSection = msgspec.field(default_factory=ConductorSection)
    security: MasterSecuritySection = msgspec.field(default_factory=MasterSecuritySection)
    log: LogSection = msgspec.field(default_factory=LogSection)
