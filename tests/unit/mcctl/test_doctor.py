"""mcctl doctor: each check finds its trouble and says the fix, and is silent where there is none."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from kit.daemon import free_port

from daemons.client.cluster import ClusterClient
from daemons.config.secret import mark_of
from daemons.core.errors import ProtocolError
from daemons.core.ids import Epoch, HostId, Incarnation, NodeId
from daemons.protocol.node import (
    ListedNode,
    ListNodesReply,
    ModelDescription,
    NodeDescription,
    NodeState,
    Role,
)
from daemons.protocol.segment import DataAddress
from mcctl.commands.doctor import check_clock, of_units
from mcctl.doctor.cluster import check_cluster
from mcctl.doctor.configs import check_configs, load_all
from mcctl.doctor.finding import Finding
from mcctl.doctor.host import Host, read_host
from mcctl.doctor.ports import Wanted, check_ports, holder_of, parse
from mcctl.doctor.segments import no_room
from mcctl.file_system import FileSystem, file_system
from mcctl.main import main

HOST = Host(memory_bytes=8 << 30, is_clock_synchronized=True)


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def check(directory: Path, host: Host = HOST, **files: str) -> list[Finding]:
    """`name='toml'` makes name.toml, mc_master and the like being processes."""
    paths = []
    for name, text in files.items():
        path = directory / f"{name.replace('__', '@').replace('_', '-')}.toml"
        path.write_text(text)
        paths.append(path)
    loaded, findings = load_all(paths)
    return [*findings, *check_configs(loaded, host)]


def cachenode(directory: Path, more: str = "", number: int = 0) -> str:
    ports = "listen = 'tcp://127.0.0.1:0'\nmetrics = ''\n"
    return f"[node]\nid = 'c{number}'\n{ports}[segment]\ndirectory = '{directory}'\nsize = '64MiB'\n{more}"


def test_a_good_host_has_no_findings(tmp_path: Path) -> None:
    assert check(tmp_path, mc_cachenode__0=cachenode(Path("/dev/shm"))) == []


def test_where_none_is_named_files_are_read_that_a_unit_reads(tmp_path: Path) -> None:
    read = ["mc-cachenode@a.toml", "mc-decode@gpu1.toml", "mc-master.toml"]
    for name in (*read, "mc-decode.toml", "mc-cachenode@a.toml.new", "mcctl.toml", "tenants.toml"):
        (tmp_path / name).touch()
    assert [path.name for path in of_units(tmp_path)] == read


def test_a_bad_config_is_named(tmp_path: Path) -> None:
    (found,) = check(tmp_path, mc_master="[pool]\nlease = 1\n")
    assert (found.severity, found.area) == ("error", "config")
    assert "pool.lease" in found.problem


def test_together_they_take_too_much_memory(tmp_path: Path) -> None:
    host = Host(memory_bytes=100 << 20, is_clock_synchronized=True)
    shm = Path("/dev/shm")
    files = {"mc_cachenode__0": cachenode(shm), "mc_cachenode__1": cachenode(shm, number=1)}
    (found,) = check(tmp_path, host, **files)
    assert "128.0 MiB" in found.problem
    assert check(tmp_path, host, mc_cachenode__0=cachenode(shm)) == []


def test_a_segment_needs_a_directory_in_memory_that_is_large_enough(tmp_path: Path) -> None:
    (absent,) = check(tmp_path, mc_cachenode=cachenode(tmp_path / "none"))
    assert (absent.severity, "mount -t tmpfs" in absent.fix) == ("error", True)
    on_disk = file_system(tmp_path)
    assert on_disk is not None
    if not on_disk.is_memory:
        (slow,) = check(tmp_path, mc_cachenode=cachenode(tmp_path))
        assert (slow.severity, on_disk.kind in slow.problem) == ("warning", True)
    shm = file_system(Path("/dev/shm"))
    assert shm is not None
    assert (shm.kind, shm.is_memory, shm.mount) == ("tmpfs", True, "/dev/shm")
    large = cachenode(Path("/dev/shm")).replace("64MiB", str(shm.size_bytes + 4096))
    found = check(tmp_path, Host(0, is_clock_synchronized=True), mc_cachenode=large)
    assert ["remount" in one.fix for one in found] == [True]


def test_segments_on_one_mount_share_its_room(tmp_path: Path) -> None:
    shm = file_system(Path("/dev/shm"))
    assert shm is not None
    half = str(shm.size_bytes // 2 + 4096)
    files = {
        f"mc_cachenode__{n}": cachenode(Path("/dev/shm"), number=n).replace("64MiB", half)
        for n in (0, 1)
    }
    (found,) = check(tmp_path, Host(0, is_clock_synchronized=True), **files)
    assert "remount" in found.fix


def test_a_hugetlbfs_needs_pages_that_the_kernel_has_set_apart() -> None:
    found = FileSystem("hugetlbfs", "/huge", 0, 0, page_bytes=2 << 20)

    def host(pages: int) -> Host:
        return Host(0, is_clock_synchronized=True, hugepages={2 << 20: pages})

    assert no_room(found, 64 << 20, host(32)) is None
    short = no_room(found, 64 << 20, host(31))
    assert short is not None
    assert "32 pages of 2.0 MiB" in short[0]
    assert "echo 32 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages" in short[1]
    assert read_host().hugepages.keys() <= {1 << n for n in range(12, 40)}


@pytest.mark.parametrize("kind", ["fuse.s3fs", "hugetlbfs"])
def test_a_file_system_that_tells_no_block_size_has_room(kind: str) -> None:
    found = FileSystem(kind, "/mnt", 0, 0, page_bytes=0)
    assert no_room(found, 64 << 20, Host(0, is_clock_synchronized=True)) is None


def test_a_master_of_another_protocol_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(*_: object) -> None:
        raise ProtocolError("peer speaks protocol 9")

    monkeypatch.setattr(ClusterClient, "nodes", other)
    path = tmp_path / "mc-cachenode.toml"
    path.write_text(cachenode(Path("/dev/shm")))
    assert main(["doctor", "-o", "plain", str(path)]) == 0
    assert "peer speaks protocol 9" in capsys.readouterr().out


def test_models_must_be_there(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    text = f"[model]\npath = '{model}'\n[node]\nlisten = 'tcp://127.0.0.1:0'\nmetrics = ''\n"
    (found,) = check(tmp_path, mc_prefill=text)
    assert "no tokenizer.json" in found.problem
    (model / "tokenizer.json").write_text("{}")
    assert check(tmp_path, mc_prefill=text) == []


def test_secrets_are_private_and_long(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    text = cachenode(Path("/dev/shm"), f"[transfer]\nsecret_file = '{secret}'\n")
    for content, mode, said in (
        (None, 0, "cannot read"),
        ("a" * 64, 0o644, "open to everyone"),
        ("short", 0o600, "less than 16 bytes"),
    ):
        if content is not None:
            secret.write_text(content)
            secret.chmod(mode)
        (found,) = check(tmp_path, mc_cachenode=text)
        assert said in found.problem
    secret.write_text("a" * 64)
    secret.chmod(0o640)
    assert check(tmp_path, mc_cachenode=text) == []


def test_a_data_port_for_all_to_read_is_told(tmp_path: Path) -> None:
    text = cachenode(Path("/dev/shm"), "[transfer]\nhost = '192.0.2.9'\n")
    (found,) = check(tmp_path, mc_cachenode=text)
    assert (found.severity, found.area, found.what) == ("warning", "secrets", "192.0.2.9")


def test_one_id_for_two(tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    (found,) = check(tmp_path, mc_cachenode__a=cachenode(shm), mc_cachenode__b=cachenode(shm))
    assert "node.id" in found.problem


def want(port: int, host: str = "127.0.0.1", process: str = "mc-master") -> Wanted:
    return Wanted(host, port, process, "node.listen", f"{process}.toml")


def test_ports_that_are_taken_by_whom(listening: int) -> None:
    (found,) = check_ports([want(listening)])
    assert found.severity == "error"
    assert f"pid {os.getpid()}" in found.problem
    holder = holder_of(listening)
    assert holder is not None
    (ours,) = check_ports([want(listening, process=Path(holder[1].split()[0]).name)])
    assert (ours.severity, ours.fix) == ("info", "nothing: it runs")
    assert list(check_ports([want(free_port())])) == []


def test_ports_that_two_configs_want_and_addresses_of_other_hosts() -> None:
    port = free_port()
    (same,) = check_ports([want(port), want(port, "0.0.0.0", "mc-gateway")])
    assert "mc-gateway.toml" in same.problem
    (far,) = check_ports([want(port, "192.0.2.1")])
    assert "192.0.2.1" in far.problem


@pytest.mark.parametrize(
    ("version", "severity", "said"),
    [
        (252, "info", "systemd 252 keeps its blocks over a crash and a restart, not over stop"),
        (254, "info", "over stop and start only if the unit says so"),
        (None, "warning", "without systemd nobody keeps its blocks"),
    ],
)
def test_what_the_fd_store_keeps_is_told(
    tmp_path: Path, version: int | None, severity: str, said: str
) -> None:
    host = Host(8 << 30, is_clock_synchronized=True, systemd_version=version)
    text = '[segment]\ndirectory = ""\nsize = "64MiB"\n'
    (found,) = [f for f in check(tmp_path, host, mc_cachenode__a=text) if f.what == "fd store"]
    assert (found.severity, said in found.problem) == (severity, True)
    assert "/var/lib/mooncake/segments" in found.fix


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("tcp://127.0.0.1:7700", ("127.0.0.1", 7700)),
        ("tcp://[::1]:7700", ("::1", 7700)),
        ("0.0.0.0:9700", ("0.0.0.0", 9700)),
        ("tcp://127.0.0.1:0", None),
        ("tcp://*:*", None),
        ("ipc:///run/x:5", None),
        ("", None),
    ],
)
def test_addresses(address: str, parsed: tuple[str, int] | None) -> None:
    assert parse(address) == parsed


def node(name: str, role: Role, software: str = "1.0", *, state: NodeState = "alive") -> ListedNode:
    model = ModelDescription(
        name="m", namespace=b"n" * 16, dtype="float32", block_tokens=64, chunk_tokens=256,
        max_context_tokens=100, num_layers=1, num_kv_heads=1, head_dim=8, vocab_size=10, eos_token_ids=[],
        is_reuse_safe=True,
    )  # fmt: skip
    description = NodeDescription(
        node=NodeId(name), role=role, host="h", host_id=HostId("h"), epoch=Epoch(1), control="", pid=1,
        software=software, model=model if role in ("prefill", "decode") else None,
    )  # fmt: skip
    return ListedNode(
        node=description, state=state, load=None, used_bytes=0, capacity_bytes=0, num_blocks=0, joined_s=1.0,
        last_beat_s=0.1,
    )  # fmt: skip


def cluster(*nodes: ListedNode) -> list[Finding]:
    master = node("master", "master").node
    return list(
        check_cluster(ListNodesReply(incarnation=Incarnation(1), master=master, nodes=list(nodes)))
    )


def test_what_is_wrong_with_a_cluster() -> None:
    assert cluster(node("p", "prefill"), node("d", "decode"), node("c", "cachenode")) == []
    (dead,) = cluster(node("c", "cachenode", state="dead"))
    assert (dead.severity, dead.what) == ("warning", "c")
    (skew,) = cluster(node("c", "cachenode", "2.0"))
    assert "2.0: c" in skew.problem
    (older,) = check_cluster(
        ListNodesReply(incarnation=Incarnation(1), master=node("m", "master").node, nodes=[]),
        own_version="0.0",
    )
    assert "0.0: this host" in older.problem
    (alone,) = cluster(node("p", "prefill"))
    assert (alone.severity, "no decode" in alone.problem) == ("error", True)


def test_daemons_with_different_secrets_are_told() -> None:
    address = DataAddress(host_id=HostId("h"), unix_path="", tcp="h:1", epoch=Epoch(1))

    def with_mark(name: str, mark: str) -> ListedNode:
        listed = node(name, "cachenode")
        described = msgspec.structs.replace(listed.node, data=address, secret_mark=mark)
        return msgspec.structs.replace(listed, node=described)

    assert cluster(with_mark("a", ""), with_mark("b", "")) == []
    assert cluster(with_mark("a", mark_of(b"x" * 16)), with_mark("b", mark_of(b"x" * 16))) == []
    (found,) = cluster(with_mark("a", mark_of(b"x" * 16)), with_mark("b", ""))
    assert (found.severity, found.area) == ("error", "secrets")
    assert "none: b; one of them: a" in found.problem
    assert mark_of(b"x" * 16) != mark_of(b"y" * 16)


def test_the_clock() -> None:
    assert [len(list(check_clock(Host(1, known)))) for known in (True, None, False)] == [0, 0, 1]
    assert read_host().memory_bytes > 1 << 28


def test_the_command_tells_the_fix_and_exits_with_78(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mc-cachenode.toml"
    path.write_text(cachenode(tmp_path / "none"))
    assert main(["doctor", "--no-cluster", "--output", "json", str(path)]) == 78
    shown = capsys.readouterr()
    findings = json.loads(shown.out)["findings"]
    assert findings[0]["severity"] == "error"
    assert "mount -t tmpfs" in findings[0]["fix"]
    assert "1 error(s)" in shown.err
    path.write_text(cachenode(Path("/dev/shm")))
    assert main(["doctor", "--no-cluster", str(path)]) == 0
    dead = f"tcp://127.0.0.1:{free_port()}"
    assert main(["doctor", "--endpoint", dead, "--timeout", "0.2", "-o", "plain", str(path)]) == 0
    assert dead in capsys.readouterr().out


def test_a_topology_file_is_read_as_the_daemons_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mc-cachenode.toml"
    path.write_text(cachenode(Path("/dev/shm"), f"[transfer]\ntopology = '{tmp_path / 'none'}'\n"))
    assert main(["doctor", "--no-cluster", "--output", "json", str(path)]) == 78
    assert "transfer.topology" in capsys.readouterr().out


def test_keys_that_are_missing_or_anothers_are_found(tmp_path: Path) -> None:
    folder = str(tmp_path)
    for node, role in (("c0", "cachenode"), ("d0", "decode")):
        assert main(["keys", "generate", node, "--role", role, "--directory", folder]) == 0
    master_key = "ab" * 32

    def found(key_file: Path) -> list[Finding]:
        security = f"[security]\nkey_file = '{key_file}'\nmaster_key = '{master_key}'\n"
        findings = check(tmp_path, mc_cachenode=cachenode(tmp_path, security))
        return [finding for finding in findings if finding.area == "keys"]

    assert found(tmp_path / "keys" / "c0.key") == []
    for name, said in (
        ("d0.key", "the key of decode d0"),
        ("c0.pub", "no secret"),
        ("x", "no such file"),
    ):
        (finding,) = found(tmp_path / "keys" / name)
        assert said in finding.problem
        assert "mcctl keys generate c0 --role cachenode" in finding.fix


def test_a_tenant_file_that_is_missing_is_found(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    config = f"[models]\nm = '{tmp_path}'\n[http]\nport = 0\n[tenants]\nfile = '{file}'\n"

    def found() -> list[Finding]:
        findings = check(tmp_path, mc_gateway=config)
        return [finding for finding in findings if finding.area == "tenants"]

    (finding,) = found()
    assert "mcctl tenant add" in finding.fix
    assert main(["tenant", "add", "acme", "--file", str(file)]) == 0
    assert found() == []
