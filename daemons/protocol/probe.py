"""How fast a data path is, measured by the nodes at its ends."""

import msgspec

from daemons.protocol.base import Message, Record
from daemons.protocol.segment import DataAddress, Grant, RegionRef


class PathMeasure(Record, frozen=True, kw_only=True):
    """One data path as its reader measured it."""

    transport: str
    latency_s: float
    """Median of small READs."""
    bytes_per_s: float
    nic: str = ""
    """The reader's interface; empty where no link is used."""
    link_bytes_per_s: float | None = None
    passed_over: list[str] = msgspec.field(default_factory=list)
    """Transports that come first but did not work, and why."""


class DataProbe(Message, frozen=True, kw_only=True):
    """To any node with a data path: where it is; with a `target`, how fast the node READs that."""

    target: RegionRef | None = None


class DataProbeReply(Message, frozen=True, kw_only=True):
    """`region` is there to be measured, `grant` opens it to others; `measured` answers a probe with a target."""

    data: DataAddress
    region: RegionRef | None = None
    measured: PathMeasure | None = None
    grant: Grant | None = None
