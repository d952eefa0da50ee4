"""Which devices are near local memory: the topology's matrix, and the node that a page lies on."""

import ctypes
import platform
from collections.abc import Callable, Mapping
from typing import Final

from daemons.transfer.device_memory import DeviceMemory, LocalMemory, address_of
from daemons.transfer.hardware import Topology

_GET_MEMPOLICY: Final = {"x86_64": 239, "aarch64": 236}
_MPOL_F_NODE, _MPOL_F_ADDR = 1, 2


class NearDevices:
    """Asked once a transfer; costs nothing where all memory is alike."""

    def __init__(
        self, topology: Topology | None, node_of: Callable[[int], int | None] | None = None
    ) -> None:
        self._node_of = node_of or node_of_page
        self._preferred: Mapping[int, frozenset[str]] = {}
        self._near_gpus: Mapping[str, frozenset[str]] = {}
        if topology is None:
            return
        rows = {node.node: topology.affinity(f"cpu:{node.node}", "rdma") for node in topology.numa}
        if any(row.others for row in rows.values()):
            self._preferred = {node: frozenset(row.preferred) for node, row in rows.items()}

        self._near_gpus = {
            gpu.pci.address: frozenset(topology.affinity(gpu.location, "rdma").preferred)
            for gpu in topology.gpus
        }

    def near_memory(self, memory: LocalMemory) -> frozenset[str]:
        """Names of the devices to prefer for this memory; none means that all are equal."""
        if isinstance(memory, DeviceMemory):
            return self._near_gpus.get(memory.driver.pci_address(memory.device), frozenset())
        return self.near(address_of(memory))

    def near(self, address: int) -> frozenset[str]:
        """The same for memory of the host."""
        if not any(self._preferred.values()):
            return frozenset()
        if len(self._preferred) == 1:
            return next(iter(self._preferred.values()))
        node = self._node_of(address)
        return frozenset() if node is None else self._preferred.get(node, frozenset())


def node_of_page(address: int) -> int | None:
    """The NUMA node of the page at this address, which is faulted in; None where the kernel does not say."""
    number = _GET_MEMPOLICY.get(platform.machine())
    if number is None:
        return None
    node = ctypes.c_int(-1)
    failed = ctypes.CDLL(None).syscall(
        ctypes.c_long(number),
        ctypes.byref(node),
        None,
        ctypes.c_ulong(0),
        ctypes.c_void_p(address),
        ctypes.c_ulong(_MPOL_F_NODE | _MPOL_F_ADDR),
    )
    return None if failed or node.value < 0 else node.value
