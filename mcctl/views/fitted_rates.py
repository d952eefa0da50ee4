"""The rates of a fitted profile: which were measured, by what, and which are the base's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from daemons.core.errors import ConfigError
from daemons.core.units import format_size
from daemons.simulation.hardware import HardwareProfile
from mcctl.bench.ssd import SsdResult
from mcctl.bench.transfer import TransferResult
from mcctl.render import Column

_BETWEEN_HOSTS: Final = ("rdma", "tcp")
"""The one that clusters use first."""
_GB: Final = 1e9


class FittedRate(msgspec.Struct, frozen=True, kw_only=True):
    """A rate of the profile, bytes a second."""

    what: str
    bytes_per_s: float
    is_measured: bool
    source: str
    """What measured it, or the profile that it is of."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes a second, and what says so."""

    bytes_per_s: float
    source: str


RATE_COLUMNS: Final = [
    Column("rate", lambda row: row.what),
    Column("profile", lambda row: f"{row.bytes_per_s / _GB:,.2f} GB/s", is_number=True),
    Column("", lambda row: "measured" if row.is_measured else "not measured"),
    Column("by", lambda row: row.source),
]


def network_rate(result: TransferResult) -> Measured:
    """The fastest READ over the transport that hosts use between them. Raises ConfigError where none was measured."""
    for transport in _BETWEEN_HOSTS:
        reads = [
            row for row in result.rows if (row.transport, row.operation) == (transport, "read")
        ]
        if reads:
            best = max(reads, key=lambda row: row.gb_s)
            source = f"bench transfer, {transport} READ of {format_size(best.size_bytes)}"
            return Measured(_positive(best.gb_s, source), source)
    raise ConfigError(
        "--transfer: these rows have no READ over rdma or tcp, as it goes between hosts; measure with "
        "mcctl bench transfer --transport tcp --output json"
    )


def ssd_rate(result: SsdResult) -> Measured:
    """The fastest read. Raises ConfigError where it was not the disk that answered."""
    reads = [row for row in result.rows if row.what == "read"]
    if not reads or not result.is_direct:
        raise ConfigError(
            "--ssd: not the disk was read there but the page cache, as its filesystem has no O_DIRECT; measure in a "
            "directory of the drive itself: mcctl bench ssd DIRECTORY --output json"
        )
    best = max(reads, key=lambda row: row.value)
    source = f"bench ssd, read of {format_size(best.size_bytes)}"
    return Measured(_positive(best.value, source), source)


def rates_of(
    profile: HardwareProfile, base_name: str, measured: dict[str, Measured]
) -> list[FittedRate]:
    """All of the profile's; `measured` by key."""
    values = {
        "bandwidth.load": profile.bandwidth.load,
        "bandwidth.network": profile.bandwidth.network,
        "ssd.read": profile.ssd.read,
        "ssd.write": profile.ssd.write,
        "object.read": profile.object.read,
        "object.write": profile.object.write,
    }
    return [
        FittedRate(
            what=what,
            bytes_per_s=value,
            is_measured=what in measured,
            source=measured[what].source if what in measured else base_name,
        )
        for what, value in values.items()
    ]


def not_measured(measured: dict[str, Measured]) -> Sequence[str]:
    """Keys, or whole sections, that are the base's."""
    of_base = [] if "bandwidth.network" in measured else ["bandwidth.network"]
    of_base += ["ssd.write", "ssd.latency_s"] if "ssd.read" in measured else ["ssd"]
    of_base.append("object")
    return of_base if "bandwidth.load" in measured else [*of_base, "bandwidth.load"]


def _positive(gb_s: float, source: str) -> float:
    if not gb_s > 0:
        raise ConfigError(f"{source} is {gb_s:g} GB/s, which is no rate")
    return gb_s * _GB
