"""What is wrong with a host's topology, and what to do about it. Pure: what the kernel was asked comes as arguments."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from daemons.core.units import GIB, format_size
from daemons.transfer.hardware import Device, Nic, Topology

Severity = Literal["error", "warning", "info"]
_SEVERITIES: Final = ("error", "warning", "info")
_ENOUGH_MEMLOCK_BYTES: Final = GIB
"""Below it, not even a small segment can be registered."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know. error: a data path that is configured here cannot work; warning: it works, but slower."""

    severity: Severity
    device: str
    problem: str
    fix: str


def check(
    topology: Topology,
    *,
    no_verbs_reason: str = "",
    memlock_bytes: int | None = None,
    wants_rdma: bool = False,
) -> list[Finding]:
    """Findings, the worst first. `memlock_bytes` None: no limit. `wants_rdma`: the config demands it."""
    found = [
        *_check_nics(topology),
        *_check_rdma_ports(topology),
        *_check_speeds(topology),
        *_check_verbs(topology, no_verbs_reason, wants_rdma=wants_rdma),
        *_check_memory(topology, memlock_bytes),
        *_check_distances(topology),
        *(
            _finding("info", "sysfs", note, "nothing, if the device is not used")
            for note in topology.notes
        ),
    ]
    return sorted(found, key=lambda finding: _SEVERITIES.index(finding.severity))


def _finding(severity: Severity, device: str, problem: str, fix: str) -> Finding:
    return Finding(severity=severity, device=device, problem=problem, fix=fix)


def _check_nics(topology: Topology) -> Iterator[Finding]:
    real = [nic for nic in topology.nics if nic.kind != "virtual"]
    if not any(nic.is_up for nic in topology.nics):
        yield _finding(
            "warning",
            "network",
            "no network interface is up: only processes on this host can be reached",
            "connect a NIC, or bring it up: ip link set DEVICE up",
        )
    for nic in real:
        if not nic.is_up and not _is_spare(nic, topology):
            yield _finding(
                "warning",
                nic.name,
                "its link is down",
                f"check cable and switch port, then: ip link set {nic.name} up",
            )
        if nic.is_up and nic.is_half_duplex:
            yield _finding(
                "warning",
                nic.name,
                "it runs half duplex",
                f"set both ends to negotiate: ethtool -s {nic.name} autoneg on",
            )
    if real and all(nic.kind == "wifi" for nic in real if nic.is_up) and any(n.is_up for n in real):
        yield _finding(
            "info", "network", "the only link is wireless", "use a cable for more than a trial"
        )


def _is_spare(nic: Nic, topology: Topology) -> bool:
    """An unused port is no fault while another of its kind works; a bond's slave always should."""
    if nic.bond:
        return False
    return any(
        other.is_up and (other.driver == nic.driver or "wifi" in (nic.kind, other.kind))
        for other in topology.nics
        if other.kind != "virtual" and other is not nic
    )


def _check_rdma_ports(topology: Topology) -> Iterator[Finding]:
    for device in topology.rdma:
        for port in device.ports:
            name = f"{device.name}/{port.port}"
            if not port.is_up:
                nic = device.nics[0] if device.nics else "its interface"
                fix = (
                    "check the cable and that a subnet manager runs (opensm, or in the switch)"
                    if port.link_layer == "InfiniBand"
                    else f"check the cable, then: ip link set {nic} up"
                )
                yield _finding(
                    "warning", name, f"the port is {port.state or 'of unknown state'}", fix
                )
            elif port.link_layer == "Ethernet" and not any(
                gid.is_ipv4 and gid.type in ("RoCE v2", "") for gid in port.gids
            ):
                nic = device.nics[0] if device.nics else "its interface"
                yield _finding(
                    "error",
                    name,
                    "it has no RoCE v2 address made from an IPv4 address",
                    f"give {nic} an address: ip address add ADDRESS/PREFIX dev {nic}",
                )


def _check_speeds(topology: Topology) -> Iterator[Finding]:
    seen = set()
    devices: list[Device] = [*topology.rdma, *topology.nics]
    for device in devices:
        pci = device.pci
        if pci is not None and pci.is_slow and pci.address not in seen:
            seen.add(pci.address)
            yield _finding(
                "warning",
                device.name,
                f"its PCI link runs at {pci.link}, it could {pci.max_link}",
                "move the card to a full slot; check the BIOS for bifurcation and power saving (ASPM)",
            )
    yield from _check_siblings(topology)


def _check_siblings(topology: Topology) -> Iterator[Finding]:
    """Devices of one model that run slower than the best of them."""
    groups: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for device in topology.rdma:
        rates = [port.rate_gbps for port in device.ports if port.is_up and port.rate_gbps]
        if rates and device.model:
            groups[device.model].append((device.name, max(rates)))
    of_rdma = {name for device in topology.rdma for name in device.nics}
    for nic in topology.nics:
        if nic.is_up and nic.kind == "physical" and nic.speed_mbps and nic.name not in of_rdma:
            # Cards with the same driver but another slot width are another model.
            kind = f"{nic.driver} {nic.pci.max_link}" if nic.driver and nic.pci else nic.name
            groups[kind].append((nic.name, nic.speed_mbps / 1000))
    for devices in groups.values():
        best = max(rate for _, rate in devices)
        for name, rate in devices:
            if rate <= best / 2:
                yield _finding(
                    "warning",
                    name,
                    f"it runs at {rate:g} Gbit/s, others of its kind at {best:g}",
                    "check cable or transceiver and the switch port's speed",
                )


def _check_verbs(topology: Topology, reason: str, *, wants_rdma: bool) -> Iterator[Finding]:
    if reason:
        harmless: Severity = "warning" if topology.rdma else "info"
        yield _finding(
            "error" if wants_rdma else harmless,
            topology.rdma[0].name if topology.rdma else "rdma",
            f"RDMA cannot be used: {reason}",
            "data goes over tcp until that is mended; for trials: rdma link add rxe0 type rxe netdev NIC",
        )
    elif wants_rdma and not any(device.is_up for device in topology.rdma):
        yield _finding(
            "error",
            "rdma",
            "the config demands rdma but no RDMA device is up",
            "take rdma out of transports, or load the driver; for trials: rdma link add rxe0 type rxe netdev NIC",
        )


def _check_memory(topology: Topology, memlock_bytes: int | None) -> Iterator[Finding]:
    if topology.rdma and memlock_bytes is not None and memlock_bytes < _ENOUGH_MEMLOCK_BYTES:
        yield _finding(
            "error",
            "memlock",
            f"only {format_size(memlock_bytes)} may be locked; RDMA locks all memory it registers",
            "the shipped units set LimitMEMLOCK=infinity; in a shell: ulimit -l unlimited",
        )
    if not any(pool.total for node in topology.numa for pool in node.hugepages):
        yield _finding(
            "info",
            "hugepages",
            "none are reserved: segments use small pages, which are slower to allocate and register",
            "sysctl vm.nr_hugepages=N (2 MiB each), a hugetlbfs mount as segment.directory, and a tmpfs as "
            "segment.index_directory",
        )


def _check_distances(topology: Topology) -> Iterator[Finding]:
    for scheme in ("rdma", "tcp"):
        everything = {
            name
            for row in topology.matrix.values()
            for name in (*row[scheme].preferred, *row[scheme].others)
        }
        if not everything or (scheme == "tcp" and topology.rdma):
            continue
        for location, row in topology.matrix.items():
            affinity = row[scheme]
            if affinity.preferred:
                continue
            problem = (
                "no NIC is on its NUMA node"
                if location.startswith("cpu:")
                else "this GPU has no NIC near it"
            )
            yield _finding(
                "info" if location.startswith("cpu:") else "warning",
                location,
                f"{problem}: its bytes cross the link between the sockets to {affinity.others[0]}",
                "run the daemons that move most on the NIC's node, or move a NIC to the other socket",
            )
    devices: list[Device] = [*topology.nics, *topology.rdma]
    for device in devices if len(topology.numa) > 1 else []:
        if device.pci is not None and device.numa is None:
            yield _finding(
                "info",
                device.name,
                "the firmware does not say which NUMA node it is on",
                f"name it in the override file: [nic.{device.name}] numa = N",
            )
