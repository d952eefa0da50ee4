"""Which devices of this host should carry which memory's bytes: discovery, distances, and the operator's corrections.

Deterministic: the same tree and override give the same value. Reads sysfs once; nothing here watches it.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from daemons.config.base import Section, load_config
from daemons.core.errors import ConfigError
from daemons.transfer.hardware import (
    Affinity,
    Device,
    Nic,
    NumaNode,
    PciPlace,
    RdmaDevice,
    Scheme,
    Topology,
)
from daemons.transfer.sysfs import Sysfs
from daemons.transfer.transports.rdma import why_unavailable

D = TypeVar("D", bound=Device)

_SAME_SWITCH: Final = 0
"""Plus the bridges between the two; the numbers below are only compared with each other."""
_SAME_ROOT_COMPLEX: Final = 100
_SAME_NODE: Final = 200
_UNKNOWN: Final = 300
_OTHER_NODE: Final = 400


class NicOverride(Section, frozen=True, kw_only=True):
    """What the firmware got wrong about a NIC or RDMA device."""

    numa: int | None = None
    speed_mbps: int | None = None


class LocationOverride(Section, frozen=True, kw_only=True):
    """Devices for one kind of memory, netdevs and RDMA devices mixed. Those not named are `others`."""

    preferred: list[str]


class TopologyOverride(Section, frozen=True, kw_only=True):
    """The override file."""

    ignore: list[str] = msgspec.field(default_factory=list)
    """Devices that must carry nothing."""
    nic: dict[str, NicOverride] = msgspec.field(default_factory=dict)
    location: dict[str, LocationOverride] = msgspec.field(default_factory=dict)


def discover(sysfs_root: Path = Path("/sys"), override: Path | None = None) -> Topology:
    """Read the host, lay the override file over it, and work out the matrix.

    Odd files become `notes`; only a wrong override raises (ConfigError).
    """
    sysfs = Sysfs(sysfs_root)
    nics = _with_bonds(sysfs.nics())
    topology = Topology(
        numa=sysfs.numa_nodes(),
        nics=sorted(nics, key=lambda nic: _natural(nic.name)),
        rdma=sorted(
            (_placed(device, nics) for device in sysfs.rdma_devices()),
            key=lambda device: _natural(device.name),
        ),
        gpus=sysfs.gpus(),
        notes=sysfs.notes,
    )
    chosen = load_config(override, TopologyOverride) if override else TopologyOverride()
    if override:
        _check(chosen, topology, override)
        topology = _corrected(topology, chosen)
        topology = msgspec.structs.replace(topology, ignored=sorted(chosen.ignore))
    return msgspec.structs.replace(topology, matrix=_matrix(topology, chosen, override))


def distance(one: PciPlace | None, other: PciPlace | None) -> int | None:
    """Between two functions by their common ancestors; None when they share none."""
    if one is None or other is None:
        return None
    num_common = 0
    for mine, theirs in zip(one.ancestors, other.ancestors, strict=False):
        if mine != theirs:
            break
        num_common += 1
    if not num_common:
        return None
    # The first ancestor is the root complex itself.
    base = _SAME_ROOT_COMPLEX if num_common == 1 else _SAME_SWITCH
    return base + len(one.ancestors) + len(other.ancestors) - 2 * num_common


def describe_devices(topology: Topology) -> list[str]:
    """A line for each device whose bytes could be ours; what a node tells the cluster of its host."""
    lines = [
        f"{gpu.location}: {gpu.vendor} GPU, node {_or_unknown(gpu.numa)}" for gpu in topology.gpus
    ]
    for device in _carrying(topology, topology.rdma):
        rate = max((port.rate_gbps or 0.0 for port in device.ports if port.is_up), default=0.0)
        state = f"{rate:g} Gbit/s" if device.is_up else "DOWN"
        kind = f"RDMA ({', '.join(device.nics)})" if device.nics else "RDMA"
        lines.append(f"{device.name}: {kind}, {state}, node {_or_unknown(device.numa)}")
    for nic in _carrying(topology, topology.nics):
        if nic.kind != "virtual" and nic.is_up:
            speed = f"{nic.speed_mbps / 1000:g} Gbit/s" if nic.speed_mbps else "speed unknown"
            lines.append(f"{nic.name}: NIC, {speed}, node {_or_unknown(nic.numa)}")
    return lines


@functools.cache
def host_devices(*, wants_rdma: bool, override: Path | None = None) -> list[str]:
    """`describe_devices` of this host as it was when first asked, and why it has no RDMA where that is wanted."""
    topology = discover(override=override)
    lines = describe_devices(topology)
    if override is not None:
        ignored = f", which ignores {', '.join(topology.ignored)}" if topology.ignored else ""
        lines.append(f"corrected by {override}{ignored}")
    why = why_unavailable() if wants_rdma else None
    return [*lines, f"rdma: not used: {why}"] if why else lines


def _carrying(topology: Topology, devices: Iterable[D]) -> list[D]:
    return [device for device in devices if device.name not in topology.ignored]


def _or_unknown(numa: int | None) -> str:
    return "unknown" if numa is None else str(numa)


def _with_bonds(nics: Sequence[Nic]) -> list[Nic]:
    """A bond is on the node that all its slaves are on."""
    by_name = {nic.name: nic for nic in nics}
    found = []
    for nic in nics:
        numas = {by_name[name].numa for name in nic.slaves if name in by_name}
        if nic.kind == "bond" and len(numas) == 1:
            found.append(msgspec.structs.replace(nic, numa=numas.pop()))
        else:
            found.append(nic)
    return found


def _placed(device: RdmaDevice, nics: Iterable[Nic]) -> RdmaDevice:
    """A software device is where its interface is."""
    if device.pci is not None:
        return device
    for nic in nics:
        if nic.name in device.nics:
            return msgspec.structs.replace(device, pci=nic.pci, numa=nic.numa)
    return device


# The matrix.


def _matrix(
    topology: Topology, override: TopologyOverride, path: Path | None
) -> dict[str, dict[Scheme, Affinity]]:
    places: dict[str, tuple[PciPlace | None, int | None]] = {
        f"cpu:{node.node}": (None, node.node) for node in topology.numa
    }
    places |= {gpu.location: (gpu.pci, gpu.numa) for gpu in topology.gpus}
    unknown = set(override.location) - set(places)
    if unknown:
        raise ConfigError(
            f"{path}: `location.{min(unknown)}`: this host has no such memory; there is {', '.join(places)}"
        )
    usable: dict[Scheme, Sequence[Device]] = {
        "rdma": [d for d in topology.rdma if d.is_up and d.name not in override.ignore],
        "tcp": [nic for nic in _tcp_nics(topology.nics) if nic.name not in override.ignore],
    }
    return {
        location: {
            scheme: _affinity(place, devices, topology.numa, override.location.get(location))
            for scheme, devices in usable.items()
        }
        for location, place in places.items()
    }


def _tcp_nics(nics: Sequence[Nic]) -> list[Nic]:
    """Links that are up, a bond instead of its slaves; a container has only virtual ones."""
    up = [nic for nic in nics if nic.is_up and not nic.bond]
    return [nic for nic in up if nic.kind != "virtual"] or up


def _affinity(
    place: tuple[PciPlace | None, int | None],
    devices: Sequence[Device],
    nodes: Sequence[NumaNode],
    override: LocationOverride | None,
) -> Affinity:
    pci, numa = place
    far = {device.name: _far(pci, numa, device, nodes) for device in devices}
    names = sorted(far, key=lambda name: (far[name], _natural(name)))
    if override is not None:
        preferred = [name for name in override.preferred if name in far]
    else:
        # Memory of a CPU is equally near to all devices of its node; a GPU's to the fewest bridges.
        nearest = min(far.values(), default=0)
        limit = nearest if pci is not None else _UNKNOWN
        preferred = [name for name in names if far[name] <= min(limit, _UNKNOWN)]
    return Affinity(preferred=preferred, others=[name for name in names if name not in preferred])


def _far(pci: PciPlace | None, numa: int | None, device: Device, nodes: Sequence[NumaNode]) -> int:
    """How far a device is from memory: a number to compare, smaller is nearer."""
    hops = distance(pci, device.pci)
    if hops is not None:
        return hops
    if len(nodes) == 1:
        return _SAME_NODE
    if numa is None or device.numa is None:
        return _UNKNOWN
    if numa == device.numa:
        return _SAME_NODE
    distances = next((node.distances for node in nodes if node.node == numa), [])
    ids = [node.node for node in nodes]
    index = ids.index(device.numa) if device.numa in ids else len(distances)
    return _OTHER_NODE + (distances[index] if index < len(distances) else 0)


# The override file.


def _check(override: TopologyOverride, topology: Topology, path: Path) -> None:
    known = {device.name for device in (*topology.nics, *topology.rdma)}
    named = [("ignore", name) for name in override.ignore]
    named += [(f"nic.{name}", name) for name in override.nic]
    for location, said in override.location.items():
        named += [(f"location.{location}.preferred", name) for name in said.preferred]
    for key, name in named:
        if name not in known:
            there = ", ".join(sorted(known, key=_natural)) or "none"
            raise ConfigError(
                f"{path}: `{key}`: this host has no device {name!r}; there is {there}"
            )
    nodes = {node.node for node in topology.numa}
    for name, corrected in override.nic.items():
        if corrected.numa is not None and corrected.numa not in nodes:
            raise ConfigError(
                f"{path}: `nic.{name}.numa`: this host has no NUMA node {corrected.numa}; "
                f"there is {', '.join(map(str, sorted(nodes)))}"
            )
        if corrected.speed_mbps is not None and corrected.speed_mbps <= 0:
            raise ConfigError(f"{path}: `nic.{name}.speed_mbps`: must be more than 0")


def _corrected(topology: Topology, override: TopologyOverride) -> Topology:
    nics, devices = [], []
    for nic in topology.nics:
        said = override.nic.get(nic.name, NicOverride())
        nics.append(
            msgspec.structs.replace(
                nic,
                numa=nic.numa if said.numa is None else said.numa,
                speed_mbps=said.speed_mbps or nic.speed_mbps,
            )
        )
    for device in topology.rdma:
        said = override.nic.get(device.name, NicOverride())
        numa = device.numa if said.numa is None else said.numa
        rate = said.speed_mbps / 1000 if said.speed_mbps else None
        ports = [
            msgspec.structs.replace(port, rate_gbps=rate or port.rate_gbps) for port in device.ports
        ]
        devices.append(msgspec.structs.replace(device, numa=numa, ports=ports))
    return msgspec.structs.replace(topology, nics=nics, rdma=devices)


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """mlx5_2 before mlx5_10."""
    return tuple((text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name))
