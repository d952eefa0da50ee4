"""/etc/mooncake/mc-decode.toml"""

import msgspec

from daemons.config.base import Section
from daemons.config.common import (
    Count,
    EngineSection,
    LogSection,
    MasterLinkSection,
    Metrics,
    ModelSection,
    Name,
    Seconds,
    SecuritySection,
    Threads,
    Told,
    TransferSection,
)


class NodeSection(Section, frozen=True, kw_only=True):
    """Who this instance is and where it listens."""

    id: Name = "decode"
    listen: Told = "tcp://127.0.0.1:7730"
    metrics: Metrics = "127.0.0.1:9730"
    state_dir: str = ""
    """For what was tried of kernels here, so that a restart is quicker. Empty: $STATE_DIRECTORY under systemd, else
    ~/.local/state/mooncake/ID."""


class DecodeSection(Section, frozen=True, kw_only=True):
    """Batching, pulling and publishing."""

    max_batch: Count = 32
    max_queued: Count = 256
    """Requests waiting for KV room; beyond it they are refused."""
    pull_workers: Threads = 1
    prefill_timeout_s: Seconds = 120.0
    """A prefill that has not ended after this, its time in the queue included, has failed."""
    drain_s: Seconds = 25.0
    """Requests that are still here so long after SIGTERM are cut; the unit's TimeoutStopSec must be longer."""
    publish: bool = True
    """Offer the blocks of answers to the pool, where the canary found them canonical."""
    put_hold_s: Seconds = 1.0
    """A put in flight keeps a slot that requests wait for no longer than this; what it has not read by then is lost."""


class DecodeConfig(Section, frozen=True, kw_only=True):
    """mc-decode.toml"""

    model: ModelSection
    node: NodeSection = msgspec.field(default_factory=NodeSection)
    master: MasterLinkSection = msgspec.field(default_factory=MasterLinkSection)
    engine: EngineSection = msgspec.field(default_factory=EngineSection)
    decode: DecodeSection = msgspec.field(default_factory=DecodeSection)
    transfer: TransferSection = msgspec.field(default_factory=TransferSection)
    security: SecuritySection = msgspec.field(default_factory=SecuritySection)
    log: LogSection = msgspec.field(default_factory=LogSection)
