"""Every finding on a tree that has exactly that fault, and none on a server that is as it should be."""

from pathlib import Path

from kit.sysfs import (
    SysfsTree,
    bonded_server,
    eight_gpu_server,
    laptop,
    two_socket_server,
    virtual_machine,
)

from daemons.core.units import MIB
from daemons.transfer.topology import discover
from daemons.transfer.topology_check import Finding, check


def findings(tree: SysfsTree, **options: object) -> list[Finding]:
    found = check(discover(tree.root), **options)  # type: ignore[arg-type]  # passed on
    assert all(finding.fix for finding in found)
    order = ["error", "warning", "info"]
    assert [f.severity for f in found] == sorted((f.severity for f in found), key=order.index)
    return found


def about(found: list[Finding], device: str) -> list[tuple[str, str]]:
    return [(f.severity, f.problem) for f in found if f.device == device]


def test_a_good_server_has_no_findings(tmp_path: Path) -> None:
    assert findings(eight_gpu_server(tmp_path)) == []


def test_link_down(tmp_path: Path) -> None:
    tree = eight_gpu_server(tmp_path)
    tree.write("class/infiniband/mlx5_3/ports/1/state", "1: DOWN")
    tree.write("class/net/eth3/operstate", "down")
    found = findings(tree)
    assert about(found, "mlx5_3/1") == [("warning", "the port is DOWN")]
    assert "ip link set eth3 up" in found[0].fix
    assert [f.device for f in found] == ["mlx5_3/1", "cuda:3"] or len(found) == 1


def test_half_speed_pci_link(tmp_path: Path) -> None:
    tree = eight_gpu_server(tmp_path)
    tree.write("class/infiniband/mlx5_5/device/current_link_width", "8")
    found = findings(tree)
    assert about(found, "mlx5_5") == [
        ("warning", "its PCI link runs at 32 GT/s x8, it could 32 GT/s x16")
    ]
    assert len(found) == 1, "the interface of the same function is not told again"


def test_a_device_slower_than_its_siblings(tmp_path: Path) -> None:
    tree = eight_gpu_server(tmp_path)
    tree.write("class/infiniband/mlx5_6/ports/1/rate", "200 Gb/sec (4X HDR)")
    found = findings(tree)
    assert about(found, "mlx5_6") == [
        ("warning", "it runs at 200 Gbit/s, others of its kind at 400")
    ]


def test_no_ipv4_gid(tmp_path: Path) -> None:
    tree = two_socket_server(tmp_path)
    tree.rdma("rxe0", None, nic="ens0f0", ipv4=None)
    found = findings(tree)
    assert about(found, "rxe0/1")[0][0] == "error"
    assert "dev ens0f0" in found[0].fix


def test_infiniband_needs_no_ipv4(tmp_path: Path) -> None:
    tree = two_socket_server(tmp_path)
    tree.rdma("ib0", None, nic="ens0f0", ipv4=None, layer="InfiniBand")
    assert not about(findings(tree), "ib0/1")


def test_missing_pyverbs_is_worse_when_rdma_is_demanded(tmp_path: Path) -> None:
    tree = eight_gpu_server(tmp_path / "a")
    assert about(findings(tree, no_verbs_reason="no module pyverbs"), "mlx5_0") == [
        ("warning", "RDMA cannot be used: no module pyverbs")
    ]
    found = findings(tree, no_verbs_reason="no module pyverbs", wants_rdma=True)
    assert found[0].severity == "error"
    plain = two_socket_server(tmp_path / "b")
    assert about(findings(plain, no_verbs_reason="no module pyverbs"), "rdma") == [
        ("info", "RDMA cannot be used: no module pyverbs")
    ]
    assert about(findings(plain, wants_rdma=True), "rdma")[0][0] == "error"


def test_low_memlock_matters_with_rdma_only(tmp_path: Path) -> None:
    tree = eight_gpu_server(tmp_path / "a")
    assert about(findings(tree, memlock_bytes=8 * MIB), "memlock")[0][0] == "error"
    assert not about(findings(tree, memlock_bytes=None), "memlock")
    plain = two_socket_server(tmp_path / "b")
    assert not about(findings(plain, memlock_bytes=8 * MIB), "memlock")


def test_no_hugepages_is_worth_knowing(tmp_path: Path) -> None:
    assert about(findings(two_socket_server(tmp_path)), "hugepages")[0][0] == "info"


def test_gpu_without_a_near_nic(tmp_path: Path) -> None:
    tree = two_socket_server(tmp_path)
    for name in ("ens1f0", "ens1f1"):
        tree.write(f"class/net/{name}/operstate", "down")
    tree.gpu("pci0000:c0", "0000:c0:01.0", "0000:c1:00.0", numa=1)
    found = findings(tree)
    assert about(found, "cuda:0")[0][0] == "warning"
    assert "ens0f0" in about(found, "cuda:0")[0][1]
    assert about(found, "cpu:1")[0][0] == "info"


def test_unused_port_of_a_card_is_no_fault_but_a_bonds_slave_is(tmp_path: Path) -> None:
    assert not about(findings(two_socket_server(tmp_path / "a")), "ens0f1")
    bonded = findings(bonded_server(tmp_path / "b"))
    assert about(bonded, "ens1f1") == [("warning", "its link is down")]


def test_laptop_and_virtual_machine_only_get_remarks(tmp_path: Path) -> None:
    for tree in (laptop(tmp_path / "a"), virtual_machine(tmp_path / "b")):
        assert {f.severity for f in findings(tree)} == {"info"}


def test_no_network_at_all(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.node(0, "0-1")
    assert about(findings(tree), "network")[0][0] == "warning"


def test_half_duplex(tmp_path: Path) -> None:
    tree = virtual_machine(tmp_path)
    tree.write("class/net/eth0/duplex", "half")
    assert about(findings(tree), "eth0") == [("warning", "it runs half duplex")]


def test_unknown_node_on_a_machine_with_several(tmp_path: Path) -> None:
    tree = two_socket_server(tmp_path)
    for name in ("0000:17:00.0", "0000:17:02.0"):
        tree.write(f"bus/pci/devices/{name}/numa_node", "-1")
    assert "[nic.ens0f0] numa" in next(f.fix for f in findings(tree) if f.device == "ens0f0")


def test_notes_of_discovery_are_findings(tmp_path: Path) -> None:
    tree = virtual_machine(tmp_path)
    tree.write("class/net/eth0/speed", "fast")
    assert about(findings(tree), "sysfs")[0][0] == "info"
