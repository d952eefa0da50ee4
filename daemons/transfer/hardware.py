"""What a host has for moving bytes, as values: NUMA nodes, NICs, RDMA devices, GPUs, and which are close to which.

Read from sysfs by `sysfs.py`, joined and corrected by `topology.py`. Everything turns into JSON as it is.
"""

from typing import Literal

import msgspec

Scheme = Literal["rdma", "tcp"]
NicKind = Literal["physical", "bond", "wifi", "virtual"]


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts. None: the host does not say."""


class HugePages(Hardware, frozen=True, kw_only=True):
    """One pool of one size on one NUMA node."""

    size_bytes: int
    total: int
    free: int


class NumaNode(Hardware, frozen=True, kw_only=True):
    """A socket, or a part of one, with its memory."""

    node: int
    cpus: str
    """As Linux writes it: 0-15,32-47."""
    memory_bytes: int | None = None
    hugepages: list[HugePages] = msgspec.field(default_factory=list)
    distances: list[int] = msgspec.field(default_factory=list)
    """To every node, 10 for itself."""


class PciPlace(Hardware, frozen=True, kw_only=True):
    """Where a device sits, and whether its link runs as wide and fast as it could."""

    address: str
    """0000:3b:00.0"""
    ancestors: list[str]
    """Root complex first, the device itself last."""
    link: str = ""
    """16.0 GT/s x16, empty where unknown."""
    max_link: str = ""
    is_slow: bool = False


class Device(Hardware, frozen=True, kw_only=True):
    """What can carry bytes."""

    name: str
    numa: int | None = None
    pci: PciPlace | None = None


class Nic(Device, frozen=True, kw_only=True):
    """A network interface."""

    kind: NicKind
    is_up: bool
    driver: str = ""
    speed_mbps: int | None = None
    is_half_duplex: bool = False
    mtu: int | None = None
    bond: str = ""
    """The bond it serves; the bond then stands for it."""
    slaves: list[str] = msgspec.field(default_factory=list)


class Gid(Hardware, frozen=True, kw_only=True):
    """An address of an RDMA port."""

    index: int
    gid: str
    type: str
    """RoCE v2, IB/RoCE v1, empty where unknown."""
    nic: str = ""

    @property
    def is_ipv4(self) -> bool:
        return self.gid.startswith("0000:0000:0000:0000:0000:ffff:")


class RdmaPort(Hardware, frozen=True, kw_only=True):
    """One port of an RDMA device."""

    port: int
    state: str
    """ACTIVE, DOWN, INIT, ARMED."""
    link_layer: str
    """Ethernet or InfiniBand."""
    rate_gbps: float | None = None
    gids: list[Gid] = msgspec.field(default_factory=list)

    @property
    def is_up(self) -> bool:
        return self.state == "ACTIVE"


class RdmaDevice(Device, frozen=True, kw_only=True):
    """A verbs device; `nics` are the interfaces of the same function."""

    model: str = ""
    firmware: str = ""
    ports: list[RdmaPort] = msgspec.field(default_factory=list)
    nics: list[str] = msgspec.field(default_factory=list)

    @property
    def is_up(self) -> bool:
        return any(port.is_up for port in self.ports)


class Gpu(Hardware, frozen=True, kw_only=True):
    """`index` counts in PCI order, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID."""

    index: int
    vendor: Literal["nvidia", "amd"]
    pci: PciPlace
    numa: int | None = None

    @property
    def location(self) -> str:
        return f"cuda:{self.index}"


class Affinity(Hardware, frozen=True, kw_only=True):
    """Devices for one kind of memory, the nearest first; only those whose link is up."""

    preferred: list[str] = msgspec.field(default_factory=list)
    others: list[str] = msgspec.field(default_factory=list)


class Topology(Hardware, frozen=True, kw_only=True):
    """One host. `matrix[location][scheme]`, location "cpu:N" or "cuda:N"."""

    numa: list[NumaNode]
    nics: list[Nic]
    rdma: list[RdmaDevice]
    gpus: list[Gpu]
    matrix: dict[str, dict[Scheme, Affinity]] = msgspec.field(default_factory=dict)
    ignored: list[str] = msgspec.field(default_factory=list)
    """Devices that must carry nothing, by the override file."""
    notes: list[str] = msgspec.field(default_factory=list)
    """What could not be read or made sense of."""

    def affinity(self, location: str, scheme: Scheme) -> Affinity:
        """Empty for a location that this host does not have."""
        return self.matrix.get(location, {}).get(scheme, Affinity())

    def link_bytes_per_s(self, name: str, port: int | None = None) -> float | None:
        """Speed of a NIC, or of a port of an RDMA device; None where neither the host nor the override file says."""
        for device in self.rdma:
            if device.name == name:
                rates = [p.rate_gbps for p in device.ports if p.port == port and p.rate_gbps]
                return rates[0] * 1e9 / 8 if rates else None
        for nic in self.nics:
            if nic.name == name and nic.speed_mbps:
                return nic.speed_mbps * 1e6 / 8
        return None
