"""How a host's topology is shown: a tree of its devices, and the matrix of memory against NICs."""

from dataclasses import dataclass

from daemons.core.units import format_size
from daemons.transfer.hardware import Affinity, Nic, NumaNode, RdmaDevice, Topology
from mcctl.render import Branch, Column


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One kind of memory and its devices by one scheme."""

    location: str
    scheme: str
    affinity: Affinity


MATRIX_COLUMNS = [
    Column("memory", lambda row: row.location),
    Column("over", lambda row: row.scheme),
    Column("preferred", lambda row: _names(row.affinity.preferred)),
    Column("others", lambda row: _names(row.affinity.others)),
]


def matrix_rows(topology: Topology) -> list[MatrixRow]:
    """Without the schemes that no device of this host serves."""
    return [
        MatrixRow(location, scheme, affinity)
        for location, row in topology.matrix.items()
        for scheme, affinity in row.items()
        if scheme == "tcp" or affinity.preferred or affinity.others
    ]


def tree(topology: Topology, host: str) -> Branch:
    """Every device below its NUMA node; virtual interfaces, which carry nothing of ours, are left out."""
    root = Branch(f"host {host}")
    unplaced = Branch("node unknown")
    branches = {node.node: root.add(f"node {node.node}", _node(node)) for node in topology.numa}
    only = topology.numa[0].node if len(topology.numa) == 1 else None

    def under(numa: int | None) -> Branch:
        known = only if numa is None else numa
        return unplaced if known is None else branches.get(known, unplaced)

    for gpu in topology.gpus:
        under(gpu.numa).add(gpu.location, f"{gpu.vendor} GPU at {gpu.pci.address}")
    for device in topology.rdma:
        under(device.numa).add(device.name, _rdma(device))
    for nic in topology.nics:
        if nic.kind != "virtual" or nic.is_up:
            under(nic.numa).add(nic.name, _nic(nic))
    if unplaced.children:
        root.children.append(unplaced)
    for note in topology.notes:
        root.add("note", note)
    return root


def _node(node: NumaNode) -> str:
    parts = [f"CPUs {node.cpus or '?'}"]
    if node.memory_bytes is not None:
        parts.append(format_size(node.memory_bytes))
    parts += [
        f"{pool.free} of {pool.total} pages of {format_size(pool.size_bytes)} free"
        for pool in node.hugepages
        if pool.total
    ]
    return ", ".join(parts)


def _rdma(device: RdmaDevice) -> str:
    parts = [device.model or "RDMA device"]
    for port in device.ports:
        rate = f" {port.rate_gbps:g} Gbit/s" if port.rate_gbps else ""
        parts.append(f"port {port.port} {port.state or 'state unknown'}{rate} {port.link_layer}")
    if device.nics:
        parts.append(f"is {', '.join(device.nics)}")
    if device.pci is not None:
        parts.append(_place(device.pci.address, device.pci.link))
    return ", ".join(parts)


def _nic(nic: Nic) -> str:
    parts = ["link up" if nic.is_up else "link DOWN"]
    if nic.speed_mbps:
        parts.append(f"{nic.speed_mbps / 1000:g} Gbit/s")
    if nic.kind != "physical":
        parts.append(nic.kind)
    if nic.slaves:
        parts.append(f"of {', '.join(nic.slaves)}")
    if nic.driver:
        parts.append(nic.driver)
    if nic.pci is not None:
        parts.append(_place(nic.pci.address, nic.pci.link))
    return ", ".join(parts)


def _place(address: str, link: str) -> str:
    return f"{address} ({link})" if link else address


def _names(names: list[str]) -> str:
    return " ".join(names) or "-"
