"""/etc/mooncake/mc-prefill.toml"""

import msgspec

from daemons.config.base import Section
from daemons.config.common import (
    Count,
    EngineSection,
    Fraction,
    LogSection,
    MasterLinkSection,
    Metrics,
    ModelSection,
    Name,
    Seconds,
    SecuritySection,
    Told,
    TransferSection,
)


class NodeSection(Section, frozen=True, kw_only=True):
    """Who this instance is and where it listens."""

    id: Name = "prefill"
    listen: Told = "tcp://127.0.0.1:7720"
    metrics: Metrics = "127.0.0.1:9720"
    state_dir: str = ""
    """For what was tried of kernels here, so that a restart is quicker. Empty: $STATE_DIRECTORY under systemd, else
    ~/.local/state/mooncake/ID."""


class PrefillSection(Section, frozen=True, kw_only=True):
    """Queue, hand-off and publishing."""

    max_queued: Count = 256
    hold_s: Seconds = 30.0
    """KV that nobody pulled is given up after this."""
    ready_group_bytes: Count = 1_048_576
    """KV is announced to the decode node once this much of a layer group is there."""
    drain_s: Seconds = 25.0
    """Prompts that are still here so long after SIGTERM are cut; the unit's TimeoutStopSec must be longer."""
    publish: bool = True
    """Offer new blocks to the pool."""
    put_hold_s: Seconds = 1.0
    """A put in flight keeps a slot that prompts wait for no longer than this; what it has not read by then is lost."""
    retain_fraction: Fraction = 1.0
    """Of engine.kv_memory: so much KV of prompts that are done may stay, for later ones that begin alike. Whatever it
    is, it is given up at once when a prompt needs the room. 0: none stays."""


class PrefillConfig(Section, frozen=True, kw_only=True):
    """mc-prefill.toml"""

    model: ModelSection
    node: NodeSection = msgspec.field(default_factory=NodeSection)
    master: MasterLinkSection = msgspec.field(default_factory=MasterLinkSection)
    engine: EngineSection = msgspec.field(default_factory=EngineSection)
    prefill: PrefillSection = msgspec.field(default_factory=PrefillSection)
    transfer: TransferSection = msgspec.field(default_factory=TransferSection)
    security: SecuritySection = msgspec.field(default_factory=SecuritySection)
    log: LogSection = msgspec.field(default_factory=LogSection)
