"""Discovery on the sysfs trees of real server shapes, on broken ones, and on this machine."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.sysfs import (
    SysfsTree,
    bonded_server,
    eight_gpu_server,
    laptop,
    two_socket_server,
    virtual_machine,
)

from daemons.core.errors import ConfigError
from daemons.transfer.hardware import Topology
from daemons.transfer.topology import describe_devices, discover, distance, host_devices


def preferred(topology: Topology, location: str, scheme: str = "rdma") -> list[str]:
    return topology.affinity(location, scheme).preferred  # type: ignore[arg-type]  # a scheme


def test_eight_gpus_each_get_the_nic_behind_their_own_switch(tmp_path: Path) -> None:
    topology = discover(eight_gpu_server(tmp_path).root)
    assert len(topology.gpus) == 8
    for index in range(8):
        affinity = topology.affinity(f"cuda:{index}", "rdma")
        assert affinity.preferred == [f"mlx5_{index}"]
        half = range(4) if index < 4 else range(4, 8)
        near = [f"mlx5_{i}" for i in half if i != index]
        assert affinity.others[:3] == near, "the same socket's come before the other one's"
        assert len(affinity.others) == 7
    assert preferred(topology, "cpu:0") == [f"mlx5_{i}" for i in range(4)]
    assert preferred(topology, "cpu:1") == [f"mlx5_{i}" for i in range(4, 8)]
    assert "eno1" in preferred(topology, "cpu:0", "tcp")
    assert topology.notes == []


def test_devices_are_described(tmp_path: Path) -> None:
    topology = discover(eight_gpu_server(tmp_path).root)
    device = topology.rdma[2]
    assert (device.name, device.numa, device.nics) == ("mlx5_2", 0, ["eth2"])
    port = device.ports[0]
    assert (port.state, port.rate_gbps, port.link_layer) == ("ACTIVE", 400.0, "Ethernet")
    assert [gid.index for gid in port.gids] == [0, 1, 2, 3], "an empty entry is none"
    assert [gid.index for gid in port.gids if gid.is_ipv4 and gid.type == "RoCE v2"] == [3]
    node = topology.numa[1]
    assert (node.cpus, node.distances, node.hugepages[0].total) == (
        "56-111,168-223",
        [21, 10],
        8192,
    )
    assert node.memory_bytes == 264047996 * 1024
    assert not any(nic.name == "lo" for nic in topology.nics)
    nic = next(nic for nic in topology.nics if nic.name == "eth3")
    assert nic.pci is not None
    assert (nic.speed_mbps, nic.pci.link, nic.driver) == (400_000, "32 GT/s x16", "mlx5_core")


def test_two_sockets_use_their_own_nic_and_unplugged_ports_none(tmp_path: Path) -> None:
    topology = discover(two_socket_server(tmp_path).root)
    for socket in (0, 1):
        affinity = topology.affinity(f"cpu:{socket}", "tcp")
        assert affinity.preferred == [f"ens{socket}f0"]
        assert affinity.others == [f"ens{1 - socket}f0"]
    assert [nic.speed_mbps for nic in topology.nics] == [100_000, None, 100_000, None]
    assert topology.affinity("cpu:0", "rdma").preferred == []


def test_laptop_has_its_wireless_link_only(tmp_path: Path) -> None:
    topology = discover(laptop(tmp_path).root)
    assert topology.matrix.keys() == {"cpu:0"}
    assert preferred(topology, "cpu:0", "tcp") == ["wlp1s0"]
    kinds = {nic.name: nic.kind for nic in topology.nics}
    assert kinds == {"docker0": "virtual", "enp0s31f6": "physical", "wlp1s0": "wifi"}


def test_virtual_machine_knows_neither_node_nor_speed(tmp_path: Path) -> None:
    topology = discover(virtual_machine(tmp_path).root)
    nic = topology.nics[0]
    assert nic.pci is not None
    assert (nic.numa, nic.speed_mbps, nic.pci.address) == (None, None, "0000:00:03.0")
    assert preferred(topology, "cpu:0", "tcp") == ["eth0"]


def test_bond_stands_for_its_slaves_and_is_on_their_node(tmp_path: Path) -> None:
    topology = discover(bonded_server(tmp_path).root)
    bond = topology.nics[0]
    assert (bond.name, bond.kind, bond.numa, bond.slaves) == (
        "bond0",
        "bond",
        1,
        ["ens1f0", "ens1f1"],
    )
    assert preferred(topology, "cpu:1", "tcp") == ["bond0"]
    assert topology.affinity("cpu:0", "tcp").others == ["bond0"]


def test_soft_roce_is_where_its_interface_is(tmp_path: Path) -> None:
    tree = two_socket_server(tmp_path)
    tree.rdma("rxe0", None, nic="ens1f0", rate="100 Gb/sec (4X EDR)")
    device = discover(tree.root).rdma[0]
    assert device.pci is not None
    assert (device.numa, device.nics) == (1, ["ens1f0"])
    assert preferred(discover(tree.root), "cpu:1") == ["rxe0"]


def test_container_falls_back_to_virtual_interfaces(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.node(0, "0-1")
    tree.netdev("veth1", speed=10_000)
    assert preferred(discover(tmp_path), "cpu:0", "tcp") == ["veth1"]


def test_host_without_nic_has_empty_rows(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.node(0, "0-1")
    assert discover(tmp_path).matrix["cpu:0"]["tcp"].preferred == []


def test_empty_tree_is_one_node_with_a_note(tmp_path: Path) -> None:
    topology = discover(tmp_path / "nothing")
    assert topology.matrix.keys() == {"cpu:0"}
    assert len(topology.notes) == 1


def test_amd_accelerators_count_as_gpus(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.node(0, "0-1")
    tree.pci("pci0000:40", "0000:41:00.0", numa=0, vendor="0x1002", kind="0x120000")
    assert [gpu.vendor for gpu in discover(tmp_path).gpus] == ["amd"]


def test_nonsense_becomes_notes_and_the_rest_is_there(tmp_path: Path) -> None:
    tree = eight_gpu_server(tmp_path)
    for path, content in {
        "class/net/eth0/speed": "fast",
        "class/net/eth1/mtu": b"\xff\xfe",
        "class/infiniband/mlx5_0/ports/1/rate": "quick",
        "devices/system/node/node0/meminfo": "",
        "class/net/eth2/operstate": "",
    }.items():
        tree.write(path, content)
    (tree.root / "class/net/bonding_masters").write_text("")
    (tree.root / "class/infiniband/mlx5_1/ports/1/gids/0").unlink()
    (tree.root / "class/infiniband/mlx5_1/ports/1/gids/0").mkdir()
    topology = discover(tree.root)
    assert len(topology.notes) == 4
    assert any("'fast' is no number" in note for note in topology.notes)
    assert preferred(topology, "cuda:0") == ["mlx5_0"]
    assert len(topology.nics) == 9


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_no_content_of_any_file_stops_discovery(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("sysfs")
    tree = two_socket_server(root)
    tree.rdma("rxe0", None, nic="ens0f0")
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    for path in data.draw(st.lists(st.sampled_from(files), max_size=5, unique=True)):
        path.write_bytes(data.draw(st.binary(max_size=12)))
    for path in data.draw(st.lists(st.sampled_from(files), max_size=3, unique=True)):
        path.unlink()
    assert msgspec.json.encode(discover(root))


def test_same_tree_gives_the_same_json_and_back(tmp_path: Path) -> None:
    root = eight_gpu_server(tmp_path).root
    text = msgspec.json.encode(discover(root))
    assert text == msgspec.json.encode(discover(root))
    assert msgspec.json.decode(text, type=Topology) == discover(root)
    assert json.loads(text)["matrix"]["cuda:0"]["rdma"]["preferred"] == ["mlx5_0"]


def test_distance_counts_bridges_and_knows_root_complexes(tmp_path: Path) -> None:
    topology = discover(eight_gpu_server(tmp_path).root)
    gpu = topology.gpus[0].pci
    own, other = topology.rdma[0].pci, topology.rdma[1].pci
    assert distance(gpu, gpu) == 0
    assert distance(gpu, own) == 4
    assert distance(gpu, other) is None
    assert distance(gpu, None) is None


def test_this_machine_can_be_read() -> None:
    topology = discover()
    assert topology.numa
    assert "cpu:0" in topology.matrix
    assert msgspec.json.encode(topology)


# The override file.


def override(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "topology.toml"
    path.write_text(text)
    return path


def test_override_chooses_ignores_and_corrects(tmp_path: Path) -> None:
    root = eight_gpu_server(tmp_path / "sys").root
    path = override(
        tmp_path,
        """
        ignore = ["mlx5_7", "eno1"]
        [nic.mlx5_1]
        numa = 1
        speed_mbps = 200000
        [location."cuda:0"]
        preferred = ["mlx5_3", "mlx5_2"]
        """,
    )
    topology = discover(root, path)
    assert preferred(topology, "cuda:0") == ["mlx5_3", "mlx5_2"]
    assert "mlx5_0" in topology.affinity("cuda:0", "rdma").others
    assert preferred(topology, "cpu:1") == ["mlx5_1", "mlx5_4", "mlx5_5", "mlx5_6"]
    assert topology.rdma[1].ports[0].rate_gbps == 200
    assert "mlx5_7" not in topology.affinity("cuda:7", "rdma").others
    assert [device.name for device in topology.rdma][-1] == "mlx5_7", "still listed"
    assert topology.ignored == ["eno1", "mlx5_7"]
    assert not [line for line in describe_devices(topology) if line.startswith("mlx5_7")]


def test_links_are_as_fast_as_the_host_says_or_the_override(tmp_path: Path) -> None:
    root = eight_gpu_server(tmp_path / "sys").root
    rate = discover(root).rdma[1].ports[0].rate_gbps
    assert rate is not None
    assert discover(root).link_bytes_per_s("mlx5_1", 1) == rate * 1e9 / 8
    path = override(tmp_path, "[nic.mlx5_1]\nspeed_mbps = 8000\n[nic.eth0]\nspeed_mbps = 16000")
    topology = discover(root, path)
    assert topology.link_bytes_per_s("mlx5_1", 1) == 1e9
    assert topology.link_bytes_per_s("eth0") == 2e9
    assert topology.link_bytes_per_s("mlx5_1", 7) is topology.link_bytes_per_s("no") is None


def test_a_node_says_that_its_devices_are_corrected(tmp_path: Path) -> None:
    path = override(tmp_path, "")
    assert host_devices(wants_rdma=False, override=path)[-1] == f"corrected by {path}"
    assert not any("corrected" in line for line in host_devices(wants_rdma=False))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ignore = ["mlx5_9"]', ["`ignore`", "'mlx5_9'", "mlx5_0"]),
        ("[nic.eth9]\nnuma = 0", ["`nic.eth9`", "'eth9'"]),
        ("[nic.eth0]\nnuma = 5", ["`nic.eth0.numa`", "no NUMA node 5", "0, 1"]),
        ("[nic.eth0]\nspeed_mbps = 0", ["`nic.eth0.speed_mbps`"]),
        ('[location."cuda:8"]\npreferred = []', ["location.cuda:8", "cuda:7"]),
        ('[location."cpu:0"]\npreferred = ["no"]', ["`location.cpu:0.preferred`", "'no'"]),
        ("colour = 1", ["unknown key `colour`", "ignore, nic, location"]),
        ("ignore = 1", ["`ignore`", "expected"]),
        ("ignore = [", ["not valid TOML"]),
        ('[location."cpu:0"]', ["preferred"]),
    ],
)
def test_wrong_override_says_what_and_where(tmp_path: Path, text: str, words: list[str]) -> None:
    root = eight_gpu_server(tmp_path / "sys").root
    path = override(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        discover(root, path)
    for word in [str(path), *words]:
        assert word in caught.value.message


def test_missing_override_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        discover(tmp_path, tmp_path / "none.toml")
