"""Sysfs trees of servers that we do not have: the files that discovery reads, with real-looking content."""

import os
from dataclasses import dataclass, field
from pathlib import Path

ROCE_V2 = "RoCE v2"


@dataclass
class SysfsTree:
    """Devices lie under devices/, the class folders link to them, as in the kernel's tree."""

    root: Path
    linked: dict[str, Path] = field(default_factory=dict)

    def write(self, path: str | Path, text: str | bytes) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())
        return target

    def link(self, where: str, target: Path) -> None:
        link = self.root / where
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(os.path.relpath(target, link.parent))

    def node(self, number: int, cpus: str, *, hugepages: int = 0, distance: str = "10") -> None:
        folder = f"devices/system/node/node{number}"
        self.write(f"{folder}/cpulist", cpus)
        self.write(f"{folder}/meminfo", f"Node {number} MemTotal:       264047996 kB")
        self.write(f"{folder}/distance", distance)
        self.write(f"{folder}/hugepages/hugepages-2048kB/nr_hugepages", str(hugepages))
        self.write(f"{folder}/hugepages/hugepages-2048kB/free_hugepages", str(hugepages))

    def pci(self, *chain: str, numa: int, vendor: str = "0x15b3", kind: str = "0x020000") -> Path:
        """A function behind these bridges, the root complex first."""
        folder = self.root / "devices"
        for part in chain:
            folder = folder / part
            folder.mkdir(parents=True, exist_ok=True)
            if ":" in part and not part.startswith("pci"):
                if not (folder / "numa_node").exists():
                    self.write(folder / "numa_node", str(numa))
                self.link(f"bus/pci/devices/{part}", folder)
        self.write(folder / "vendor", vendor)
        self.write(folder / "class", kind)
        for which in ("current", "max"):
            self.write(folder / f"{which}_link_speed", "32.0 GT/s PCIe")
            self.write(folder / f"{which}_link_width", "16")
        return folder

    def gpu(self, *chain: str, numa: int, vendor: str = "0x10de") -> Path:
        return self.pci(*chain, numa=numa, vendor=vendor, kind="0x030200")

    def netdev(
        self,
        name: str,
        device: Path | None = None,
        *,
        state: str = "up",
        speed: int | None = 400_000,
        driver: str = "mlx5_core",
        type_: int = 1,
    ) -> Path:
        if device is None:
            folder = self.root / "devices/virtual/net" / name
        else:
            folder = device / "net" / name
            drivers = self.root / "bus/pci/drivers" / driver
            drivers.mkdir(parents=True, exist_ok=True)
            if not (device / "driver").exists():
                (device / "driver").symlink_to(drivers)
        self.write(folder / "operstate", state)
        self.write(folder / "type", str(type_))
        self.write(folder / "mtu", "9000")
        self.write(folder / "duplex", "full")
        if speed is not None:
            self.write(folder / "speed", str(speed))
        if device is not None:
            (folder / "device").symlink_to(device)
        self.link(f"class/net/{name}", folder)
        return folder

    def rdma(
        self,
        name: str,
        device: Path | None,
        *,
        nic: str = "",
        state: str = "4: ACTIVE",
        rate: str = "400 Gb/sec (4X NDR)",
        layer: str = "Ethernet",
        ipv4: str | None = "0a00:0001",
    ) -> Path:
        base = device / "infiniband" if device else self.root / "devices/virtual/infiniband"
        folder = base / name
        self.write(folder / "hca_type", "MT4129")
        self.write(folder / "fw_ver", "28.39.1002")
        port = folder / "ports/1"
        self.write(port / "state", state)
        self.write(port / "phys_state", "5: LinkUp")
        self.write(port / "rate", rate)
        self.write(port / "link_layer", layer)
        gids = ["fe80:0000:0000:0000:0e42:a1ff:fe5c:0001"] * 2
        if ipv4 is not None:
            gids += [f"0000:0000:0000:0000:0000:ffff:{ipv4}"] * 2
        for index, gid in enumerate([*gids, "0000:0000:0000:0000:0000:0000:0000:0000"]):
            self.write(port / f"gids/{index}", gid)
            if index < len(gids):
                self.write(
                    port / f"gid_attrs/types/{index}", ROCE_V2 if index % 2 else "IB/RoCE v1"
                )
                self.write(port / f"gid_attrs/ndevs/{index}", nic)
        if device is not None:
            (folder / "device").symlink_to(device)
        elif nic:
            self.write(folder / "parent", nic)
        self.link(f"class/infiniband/{name}", folder)
        return folder


def eight_gpu_server(root: Path) -> SysfsTree:
    """Two sockets; four PCIe switches each; behind every switch one GPU and one 400G NIC; a 25G NIC for management."""
    tree = SysfsTree(root)
    tree.node(0, "0-55,112-167", hugepages=8192, distance="10 21")
    tree.node(1, "56-111,168-223", hugepages=8192, distance="21 10")
    for index in range(8):
        numa, bus = index // 4, 0x15 + 0x18 * index
        switch = (f"pci0000:{bus:02x}", f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0")
        gpu = (*switch, f"0000:{bus + 2:02x}:00.0", f"0000:{bus + 3:02x}:00.0")
        nic = (*switch, f"0000:{bus + 2:02x}:01.0", f"0000:{bus + 4:02x}:00.0")
        tree.gpu(*gpu, numa=numa)
        device = tree.pci(*nic, numa=numa)
        tree.netdev(f"eth{index}", device)
        tree.rdma(f"mlx5_{index}", device, nic=f"eth{index}", ipv4=f"0a00:{index:02x}01")
    # What must not be taken for a GPU: the baseboard's VGA chip, and a GPU's sound.
    tree.pci("pci0000:00", "0000:00:1c.0", "0000:03:00.0", numa=0, vendor="0x1a03", kind="0x030000")
    tree.pci("pci0000:00", "0000:00:1d.0", "0000:04:00.1", numa=0, vendor="0x10de", kind="0x040300")
    management = tree.pci("pci0000:00", "0000:00:1e.0", "0000:05:00.0", numa=0, vendor="0x14e4")
    tree.netdev("eno1", management, speed=25_000, driver="bnxt_en")
    tree.netdev("lo", speed=None, state="unknown", type_=772)
    return tree


def two_socket_server(root: Path) -> SysfsTree:
    """A storage box: a 100G NIC on either socket, one of two ports each used."""
    tree = SysfsTree(root)
    tree.node(0, "0-31", distance="10 20")
    tree.node(1, "32-63", distance="20 10")
    for socket, bus in enumerate(("17", "b1")):
        for function in (0, 1):
            device = tree.pci(
                f"pci0000:{bus}", f"0000:{bus}:02.0", f"0000:{bus}:00.{function}", numa=socket
            )
            name = f"ens{socket}f{function}"
            tree.netdev(name, device, state="up" if function == 0 else "down", speed=100_000)
            if function:
                tree.write(tree.root / "class/net" / name / "speed", "-1")
    return tree


def laptop(root: Path) -> SysfsTree:
    """Wireless up, a dock's Ethernet unplugged, containers' bridges."""
    tree = SysfsTree(root)
    tree.node(0, "0-7")
    wifi = tree.pci("pci0000:00", "0000:00:1c.0", "0000:01:00.0", numa=-1, vendor="0x8086")
    wlan = tree.netdev("wlp1s0", wifi, speed=None, driver="iwlwifi")
    (wlan / "wireless").mkdir()
    wired = tree.pci("pci0000:00", "0000:00:1f.6", numa=-1, vendor="0x8086")
    tree.netdev("enp0s31f6", wired, state="down", speed=-1, driver="e1000e")
    tree.netdev("docker0", state="down", speed=None)
    tree.netdev("lo", speed=None, state="unknown", type_=772)
    return tree


def virtual_machine(root: Path) -> SysfsTree:
    """virtio: no speed, no NUMA."""
    tree = SysfsTree(root)
    tree.node(0, "0-3")
    function = tree.pci("pci0000:00", "0000:00:03.0", numa=-1, vendor="0x1af4")
    virtio = function / "virtio2"
    virtio.mkdir()
    tree.netdev("eth0", virtio, speed=-1, driver="virtio_net")
    return tree


def bonded_server(root: Path) -> SysfsTree:
    """Two 25G ports of one card as bond0, the second of which has lost its link."""
    tree = SysfsTree(root)
    tree.node(0, "0-15", distance="10 20")
    tree.node(1, "16-31", distance="20 10")
    bond = tree.netdev("bond0", speed=50_000)
    tree.write(bond / "bonding/slaves", "ens1f0 ens1f1")
    for function in (0, 1):
        device = tree.pci("pci0000:80", "0000:80:01.0", f"0000:81:00.{function}", numa=1)
        slave = tree.netdev(
            f"ens1f{function}", device, speed=25_000, state="down" if function else "up"
        )
        (slave / "master").symlink_to(bond)
    return tree
