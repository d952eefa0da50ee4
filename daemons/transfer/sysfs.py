"""Reads a sysfs tree into hardware values. Whatever is missing is left out; whatever makes no sense becomes a note."""

import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from daemons.core.units import parse_whole
from daemons.transfer.hardware import (
    Gid,
    Gpu,
    HugePages,
    Nic,
    NicKind,
    NumaNode,
    PciPlace,
    RdmaDevice,
    RdmaPort,
)

_GPU_VENDORS: Final = {"0x10de": "nvidia", "0x1002": "amd"}
_GPU_CLASSES: Final = ("0x03", "0x12")
"""Display controllers; processing accelerators, as newer AMD devices call themselves."""
_PCI_ADDRESS: Final = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_NO_GID: Final = ":0000:0000:0000:0000"
"""End of an unused entry: no interface id."""
_CARRIERS: Final = (1, 32)
"""/sys/class/net/*/type of Ethernet and InfiniBand; loopback, tunnels and the like have others."""


class Sysfs:
    """One reading of a tree; `notes` fill as it goes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.notes: list[str] = []

    def numa_nodes(self) -> list[NumaNode]:
        """A kernel without NUMA has one node."""
        folders = _numbered(self._list("devices/system/node"), "node")
        if folders:
            return [self._numa_node(number, folder) for number, folder in folders]
        cpus = self._text(self.root / "devices/system/cpu/online") or ""
        if not cpus:
            self.notes.append(f"{self.root} lists neither NUMA nodes nor CPUs")
        return [NumaNode(node=0, cpus=cpus)]

    def nics(self) -> list[Nic]:
        """Interfaces that may carry data; not loopback, tunnels or what is no Ethernet or InfiniBand."""
        found = []
        for folder in self._list("class/net"):
            kind = self._integer(folder / "type")
            if folder.is_dir() and (kind is None or kind in _CARRIERS):
                found.append(self._nic(folder))
        return found

    def rdma_devices(self) -> list[RdmaDevice]:
        return [self._rdma(folder) for folder in self._list("class/infiniband")]

    def gpus(self) -> list[Gpu]:
        """NVIDIA and AMD; a server's little VGA chip is none."""
        found: list[Gpu] = []
        for folder in self._list("bus/pci/devices"):
            vendor = _GPU_VENDORS.get(self._text(folder / "vendor") or "")
            is_gpu = (self._text(folder / "class") or "").startswith(_GPU_CLASSES)
            place = self._pci(folder)
            if vendor and is_gpu and place is not None:
                found.append(
                    Gpu(
                        index=len(found),
                        vendor=vendor,  # type: ignore[arg-type]  # a value of the table
                        pci=place,
                        numa=self._numa_of(folder),
                    )
                )
        return found

    # One device each.

    def _numa_node(self, number: int, folder: Path) -> NumaNode:
        memory = re.search(r"MemTotal:\s*(\d+) kB", self._text(folder / "meminfo") or "")
        if memory is None:
            self.notes.append(f"{folder}/meminfo does not say how much memory there is")
        distances = (self._text(folder / "distance") or "").split()
        return NumaNode(
            node=number,
            cpus=self._text(folder / "cpulist") or "",
            memory_bytes=int(memory[1]) * 1024 if memory else None,
            hugepages=list(self._hugepages(folder)),
            distances=[far for each in distances if (far := parse_whole(each)) is not None],
        )

    def _hugepages(self, folder: Path) -> Iterator[HugePages]:
        pools = []
        for pool in self._list(folder / "hugepages"):
            size = re.fullmatch(r"hugepages-(\d+)kB", pool.name)
            if size:
                pools.append((int(size[1]) * 1024, pool))
        for size_bytes, pool in sorted(pools):
            yield HugePages(
                size_bytes=size_bytes,
                total=self._integer(pool / "nr_hugepages") or 0,
                free=self._integer(pool / "free_hugepages") or 0,
            )

    def _nic(self, folder: Path) -> Nic:
        device = folder / "device"
        speed = self._integer(folder / "speed")
        bond = (folder / "master" / "bonding").is_dir()
        return Nic(
            name=folder.name,
            kind=_kind(folder),
            is_up=self._is_up(folder),
            numa=self._numa_of(device),
            pci=self._pci(device),
            driver=_link_name(device / "driver"),
            speed_mbps=speed if speed is not None and speed > 0 else None,
            is_half_duplex=self._text(folder / "duplex") == "half",
            mtu=self._integer(folder / "mtu"),
            bond=_link_name(folder / "master") if bond else "",
            slaves=sorted((self._text(folder / "bonding" / "slaves") or "").split()),
        )

    def _is_up(self, folder: Path) -> bool:
        """Some drivers never say "up": then the carrier counts."""
        state = self._text(folder / "operstate") or "unknown"
        return state == "up" or (state == "unknown" and self._integer(folder / "carrier") == 1)

    def _rdma(self, folder: Path) -> RdmaDevice:
        device = folder / "device"
        ports = [self._port(n, p) for n, p in _numbered(self._list(folder / "ports"), "")]
        nics = {path.name for path in self._list(device / "net")}
        nics |= {gid.nic for port in ports for gid in port.gids if gid.nic}
        nics |= {self._text(folder / "parent") or ""}  # a software device names its interface
        return RdmaDevice(
            name=folder.name,
            numa=self._numa_of(device),
            pci=self._pci(device),
            model=self._text(folder / "hca_type") or _link_name(device / "driver"),
            firmware=self._text(folder / "fw_ver") or "",
            ports=ports,
            nics=sorted(nics - {""}),
        )

    def _port(self, number: int, folder: Path) -> RdmaPort:
        rate_text = self._text(folder / "rate") or ""
        rate = re.match(r"([\d.]+)\s*Gb/sec", rate_text)
        if rate_text and rate is None:
            self.notes.append(f"{folder}/rate: {rate_text!r} is no rate")
        gids = []
        for index, path in _numbered(self._list(folder / "gids"), ""):
            gid = self._text(path)
            if gid and not gid.endswith(_NO_GID):
                gids.append(
                    Gid(
                        index=index,
                        gid=gid,
                        type=self._text(folder / "gid_attrs/types" / path.name) or "",
                        nic=self._text(folder / "gid_attrs/ndevs" / path.name) or "",
                    )
                )
        return RdmaPort(
            port=number,
            state=(self._text(folder / "state") or "").rpartition(":")[2].strip(),
            link_layer=self._text(folder / "link_layer") or "",
            rate_gbps=float(rate[1]) if rate else None,
            gids=gids,
        )

    def _pci(self, device: Path) -> PciPlace | None:
        """The PCI function a device is or hangs off; None for virtual ones."""
        if not device.exists():
            return None
        parts = device.resolve().parts
        last = max((i for i, part in enumerate(parts) if _PCI_ADDRESS.match(part)), default=None)
        if last is None:
            return None
        first = next(
            (i for i, p in enumerate(parts) if p.startswith("pci") or _PCI_ADDRESS.match(p)), last
        )
        function = Path(*parts[: last + 1])
        now, best = self._pci_link(function, "current"), self._pci_link(function, "max")
        return PciPlace(
            address=parts[last],
            ancestors=list(parts[first : last + 1]),
            link=_link_text(now),
            max_link=_link_text(best),
            is_slow=now is not None and best is not None and now[0] * now[1] < best[0] * best[1],
        )

    def _pci_link(self, function: Path, which: str) -> tuple[float, int] | None:
        """(GT/s, lanes)"""
        speed = re.match(r"([\d.]+) GT/s", self._text(function / f"{which}_link_speed") or "")
        width = self._integer(function / f"{which}_link_width")
        # 0 and 255 lanes: a device inside the package, with no link to speak of.
        return (float(speed[1]), width) if speed and width and width != 255 else None

    def _numa_of(self, device: Path) -> int | None:
        """Virtual devices have it at the PCI function they hang off; -1 means that the firmware did not say."""
        if not device.exists():
            return None
        for folder in (device.resolve(), *device.resolve().parents):
            number = self._integer(folder / "numa_node")
            if number is not None:
                return number if number >= 0 else None
            if folder == self.root.resolve():
                break
        return None

    # Files.

    def _list(self, where: str | Path) -> list[Path]:
        folder = self.root / where
        try:
            return sorted(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.notes.append(f"{folder} cannot be listed: {error.strerror}")
            return []

    def _text(self, path: Path) -> str | None:
        try:
            return path.read_bytes().decode().strip()
        except UnicodeDecodeError:
            self.notes.append(f"{path} holds no text")
        except OSError as error:
            # EINVAL is how a link that is down, or an empty GID, answers.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EISDIR):
                self.notes.append(f"{path} cannot be read: {error.strerror}")
        return None

    def _integer(self, path: Path) -> int | None:
        text = self._text(path)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            self.notes.append(f"{path}: {text[:40]!r} is no number")
            return None


def _numbered(paths: list[Path], prefix: str) -> list[tuple[int, Path]]:
    """Those named prefix and a number, in the order of the numbers."""
    found = [
        (number, path)
        for path in paths
        if path.name.startswith(prefix)
        and (number := parse_whole(path.name.removeprefix(prefix))) is not None
    ]
    return sorted(found)


def _kind(folder: Path) -> NicKind:
    if (folder / "bonding").is_dir():
        return "bond"
    if (folder / "wireless").exists() or (folder / "phy80211").exists():
        return "wifi"
    return "physical" if (folder / "device").exists() else "virtual"


def _link_name(link: Path) -> str:
    return link.resolve().name if link.exists() else ""


def _link_text(link: tuple[float, int] | None) -> str:
    return f"{link[0]:g} GT/s x{link[1]}" if link else ""
