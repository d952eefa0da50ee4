"""How topology is shown: a host's devices as a tree, memory against NICs, and the paths that were measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daemons.core.units import format_size
from daemons.protocol.probe import PathMeasure
from daemons.transfer.hardware import Affinity, Nic, NumaNode, RdmaDevice, Topology
from mcctl.render import Branch, Column
from mcctl.topology_probe import ProbedPath


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


PATH_COLUMNS = [
    Column("from", lambda path: path.source),
    Column("to", lambda path: path.target),
    Column("over", lambda path: path.measured.transport if path.measured else "FAILED"),
    Column("latency_us", lambda path: _if_measured(path, lambda m: f"{m.latency_s * 1e6:.1f}")),
    Column("GB/s", lambda path: _if_measured(path, lambda m: f"{m.bytes_per_s / 1e9:.3f}")),
    Column("link", lambda path: _if_measured(path, lambda m: m.nic or "-")),
    Column("of link", lambda path: _percent(path) or "-"),
]


def matrix_table(paths: Sequence[ProbedPath]) -> tuple[list[Column], list[str]]:
    """Columns and rows of a table: who reads, from whom."""
    found = {(path.source, path.target): path for path in paths}
    targets = dict.fromkeys(path.target for path in paths)
    columns = [
        Column("from \\ to", lambda source: source),
        *(Column(target, _cell_of(found, target), is_number=True) for target in targets),
    ]
    return columns, list(dict.fromkeys(path.source for path in paths))


def _cell_of(found: dict[tuple[str, str], ProbedPath], target: str) -> Callable[[str], str]:
    return lambda source: _cell(found.get((source, target)))


def _cell(path: ProbedPath | None) -> str:
    if path is None:
        return "-"
    if path.measured is None:
        return "FAILED"
    measured = path.measured
    percent = _percent(path)
    link = f" ({percent} of {measured.nic})" if percent else ""
    return f"{measured.bytes_per_s / 1e9:.2f}{link}, {measured.latency_s * 1e6:.0f} us, {measured.transport}"


def _percent(path: ProbedPath) -> str:
    return "" if path.link_fraction is None else f"{path.link_fraction:.0%}"


def _if_measured(path: ProbedPath, text: Callable[[PathMeasure], str]) -> str:
    return "-" if path.measured is None else text(path.measured)


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
