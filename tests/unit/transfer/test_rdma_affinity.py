"""Devices near to local memory, on trees of real servers."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

from kit import cuda as kit_cuda
from kit.sysfs import eight_gpu_server, virtual_machine

from daemons.transfer.cuda import load_driver
from daemons.transfer.device_memory import DeviceMemory
from daemons.transfer.topology import discover
from daemons.transfer.transports.rdma.affinity import NearDevices, node_of_page


def test_devices_of_the_memorys_node_are_near(tmp_path: Path) -> None:
    topology = discover(eight_gpu_server(tmp_path).root)
    nodes = {4096: 0, 8192: 1, 12288: 7, 16384: None}
    near = NearDevices(topology, nodes.get)
    assert near.near(4096) == {f"mlx5_{i}" for i in range(4)}
    assert near.near(8192) == {f"mlx5_{i}" for i in range(4, 8)}
    assert near.near(12288) == near.near(16384) == frozenset(), "unknown: all are equal"


def test_devices_of_a_gpus_switch_are_near_its_memory(tmp_path: Path) -> None:
    topology = discover(eight_gpu_server(tmp_path).root)
    near = NearDevices(topology)
    with kit_cuda.driver():
        for gpu in topology.gpus[:2]:
            driver = SimpleNamespace(pci_address=lambda _, at=gpu.pci.address: at)
            memory = DeviceMemory(driver, 0, 1 << 56, 100, None)  # type: ignore[arg-type]  # only asked where it is
            assert near.near_memory(memory) == set(
                topology.affinity(gpu.location, "rdma").preferred
            )
            assert near.near_memory(memory) != frozenset()
        # The driver counts devices its own way and writes PCI places in capitals.
        assert load_driver().pci_address(0) == "0000:1b:00.0"


def test_nobody_asks_where_all_memory_is_alike(tmp_path: Path) -> None:
    def ask(_: int) -> int:
        raise AssertionError("asked the kernel")

    topology = discover(virtual_machine(tmp_path).root)
    assert NearDevices(topology, ask).near(4096) == frozenset()
    assert NearDevices(None, ask).near(4096) == frozenset()


def test_the_override_file_chooses_even_where_all_memory_is_alike(tmp_path: Path) -> None:
    tree = virtual_machine(tmp_path / "sys")
    for name in ("rxe0", "rxe1"):
        tree.rdma(name, None)
    path = tmp_path / "topology.toml"
    path.write_text('[location."cpu:0"]\npreferred = ["rxe1"]')
    assert NearDevices(discover(tree.root)).near(4096) == frozenset()
    assert NearDevices(discover(tree.root, path)).near(4096) == {"rxe1"}


def test_kernel_tells_the_node_of_a_page() -> None:
    page = ctypes.create_string_buffer(1)
    assert node_of_page(ctypes.addressof(page)) in (None, *range(64))
    assert node_of_page(1) is None
