"""Two hosts and real daemons with keys: who is let in, who is not, and what a key that is revoked can still do."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.daemon import wait_for
from kit.hosts import Hosts, hosts_with, line_of, lines_of, why_no_hosts

from daemons.config.key_files import read_key_file
from mcctl.main import main

MASTER = "tcp://10.251.0.1:7700"
NODES = {
    "master": "master",
    "near": "cachenode",
    "far": "cachenode",
    "op": "admin",
    "gw": "gateway",
    "mole": "cachenode",
    "app": "client",
    "other": "client",
}
GREETING_BYTES = 64
"""Of ZMTP: a version and the name of the mechanism."""


class Cluster:
    """A master and the cache node `near` on host a, the cache node `far` on host b."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        for node, role in NODES.items():
            named = ["--namespace", f"of {node}"] if role == "client" else []
            self.keys("generate", node, "--role", role, "--authorize", *named)
        self.keys("generate", "stranger", "--role", "admin")
        self._tool = hosts.start(hosts.b, "kit.mcctl_lines")
        self.master_key = self.public("master")
        self.master_log = self.start_master()
        self.near_log = self.start_node("near")
        self.far_log = self.start_node("far")

    def keys(self, *words: str) -> None:
        assert main(["keys", *words, "--directory", str(self.folder), "--output", "plain"]) == 0

    def key(self, node: str) -> str:
        return str(self.folder / "keys" / f"{node}.key")

    def public(self, node: str) -> str:
        return read_key_file(self.folder / "keys" / f"{node}.pub").public

    def python(self, code: str) -> str:
        """What it prints, on host b."""
        process = self.hosts.start(self.hosts.b, code, option="-c")
        out, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        return out

    def start(self, host: str, module: str, *values: str) -> Path:
        """Its log."""
        log = self.folder / f"{len(self.hosts.processes)}.log"
        words = [word for value in values for word in ("--set", value)]
        self.hosts.start(host, module, *words, log=log)
        return log

    def start_master(self) -> Path:
        return self.start(
            self.hosts.a,
            "daemons.mc_master",
            f"node.listen={MASTER}",
            "node.events=tcp://10.251.0.1:7701",
            "node.metrics=10.251.0.1:9700",
            f"node.state_dir={self.folder}",
            f"security.key_file={self.key('master')}",
            f"security.authorized_file={self.folder / 'authorized.toml'}",
        )

    def start_node(self, name: str) -> Path:
        here = "10.251.0.1" if name == "near" else "10.251.0.2"
        return self.start(
            self.hosts.a if name == "near" else self.hosts.b,
            "daemons.mc_cachenode",
            f"node.id={name}",
            f"node.listen=tcp://{here}:7710",
            "node.metrics=",
            f"master.endpoint={MASTER}",
            f"transfer.host={here}",
            f"transfer.unix_dir={self.folder}",
            f"segment.directory={self.folder}",
            "segment.size=32MiB",
            f"security.key_file={self.key(name)}",
            f"security.master_key={self.master_key}",
        )

    def mcctl(self, key: str, *words: str) -> subprocess.CompletedProcess[str]:
        """On host b, as the owner of this key, or with no key at all."""
        shown = ["--key-file", self.key(key), "--master-key", self.master_key] if key else []
        line = json.dumps([*words, "--endpoint", MASTER, "-o", "json", *shown])
        assert self._tool.stdin is not None
        self._tool.stdin.write(line + "\n")
        self._tool.stdin.flush()
        answer = line_of(self._tool)
        return subprocess.CompletedProcess([], answer["code"], answer["out"], answer["errors"])

    def start_reader(self, key: str) -> "subprocess.Popen[str]":
        """On host b, of the first bytes that `near` lends."""
        region = json.dumps(self.nodes()["near"]["node"]["segments"][0]["region"])
        master = f"{MASTER}#{self.master_key}"
        return self.hosts.start(self.hosts.b, "kit.data_reader", self.key(key), master, region)

    def nodes(self) -> dict[str, Any]:
        done = self.mcctl("op", "node", "list")
        if done.returncode:
            return {}
        return {node["node"]["node"]: node for node in json.loads(done.stdout)["nodes"]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = why_no_hosts()
    if reason:
        pytest.skip(reason)
    with hosts_with(1) as hosts:
        made = Cluster(hosts, tmp_path_factory.mktemp("keys"))
        wait_for(lambda: set(made.nodes()) == {"near", "far"})
        yield made


def log_of(cluster: Cluster) -> str:
    return cluster.master_log.read_text()


def test_an_admin_on_another_host_asks_master_and_nodes(cluster: Cluster) -> None:
    done = cluster.mcctl("op", "topology", "probe", "--from-here")
    assert done.returncode == 0, done.stderr
    assert {path["target"] for path in json.loads(done.stdout)["paths"]} == {"near", "far"}


@pytest.mark.parametrize("key", ["", "stranger"])
def test_a_host_without_a_good_key_learns_nothing(cluster: Cluster, key: str) -> None:
    before = log_of(cluster).count("refused")
    done = cluster.mcctl(key, "node", "list")
    assert done.returncode in (5, 7)
    assert "key" in done.stderr
    assert "near" not in done.stdout + done.stderr
    wait_for(lambda: log_of(cluster).count("refused") > before)


def test_a_peer_that_speaks_without_keys_gets_a_greeting_and_no_more(cluster: Cluster) -> None:
    """A whole handshake and a request, as they would be without keys."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    code = (
        "import socket,sys\n"
        "s=socket.create_connection(('10.251.0.1',7700),5); s.settimeout(3); got=b''\n"
        f"s.sendall({greeting + ready!r})\n"
        "try:\n"
        "  while (piece:=s.recv(4096)): got+=piece\n"
        "except OSError: pass\n"
        "sys.stdout.write(got.hex())\n"
    )
    got = bytes.fromhex(cluster.python(code))
    assert len(got) <= GREETING_BYTES
    assert b"near" not in got


def test_a_gateways_key_cannot_clear_and_a_cache_nodes_key_cannot_look(cluster: Cluster) -> None:
    done = cluster.mcctl("gw", "cache", "clear", "--yes")
    assert done.returncode == 5
    assert "is for: admin" in done.stderr
    done = cluster.mcctl("near", "node", "list")
    assert done.returncode == 5
    wait_for(lambda: "node=gw role=gateway op=ClearBlocks" in log_of(cluster))


def test_a_node_without_keys_does_not_listen_for_other_hosts(cluster: Cluster) -> None:
    words = ["daemons.mc_cachenode", "--set", "node.listen=tcp://10.251.0.2:7711"]
    process = cluster.hosts.start(cluster.hosts.b, *words)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 78
    assert "mcctl keys generate" in errors


def test_metrics_count_what_was_refused(cluster: Cluster) -> None:
    cluster.mcctl("stranger", "node", "list")
    code = "import urllib.request as u;print(u.urlopen('http://10.251.0.1:9700').read().decode())"
    (line,) = (
        row for row in cluster.python(code).splitlines() if row.startswith("mc_master_refused ")
    )
    assert float(line.split()[1]) > 0


def test_a_revoked_node_is_out_at_once_and_stays_out(cluster: Cluster) -> None:
    assert "far" in cluster.nodes()
    cluster.keys("revoke", "far", "--yes")
    wait_for(lambda: "node=far why='its key was revoked'" in log_of(cluster), 20)
    assert set(cluster.nodes()) == {"near"}
    wait_for(lambda: "is not authorized any more" in cluster.far_log.read_text(), 20)
    cluster.keys("revoke", "op", "--yes")
    wait_for(lambda: cluster.mcctl("op", "node", "list").returncode == 5, 20)
    cluster.keys("authorize", str(cluster.folder / "keys" / "op.pub"))
    cluster.keys("authorize", str(cluster.folder / "keys" / "far.pub"))
    wait_for(lambda: set(cluster.nodes()) == {"near", "far"})


def test_a_revoked_daemon_loses_the_data_path_at_once_and_keeps_nothing_that_opens_it(
    cluster: Cluster,
) -> None:
    """It goes on with the connections and the keys that it was given while it was let in."""
    reader = cluster.start_reader("mole")
    wait_for(lambda: line_of(reader) is None)
    cluster.keys("revoke", "mole", "--yes")
    wait_for(lambda: line_of(reader) is not None)
    assert all("does not let us in" in line_of(reader) for _ in range(5))
    wait_for(lambda: "data connections cut" in cluster.near_log.read_text())
    wait_for(lambda: "data peer refused" in cluster.near_log.read_text())
    cluster.keys("authorize", str(cluster.folder / "keys" / "mole.pub"))
    wait_for(lambda: line_of(reader) is None)


def test_a_clients_key_is_for_objects_in_its_namespaces_and_for_nothing_else(
    cluster: Cluster,
) -> None:
    value = cluster.folder / "value"
    value.write_bytes(b"secret")
    done = cluster.mcctl("other", "cache", "put", "a", str(value), "--namespace", "of other")
    assert done.returncode == 0, done.stderr
    region = json.dumps(cluster.nodes()["near"]["node"]["segments"][0]["region"])
    master = f"{MASTER}#{cluster.master_key}"
    words = ["kit.client_attempts", cluster.key("app"), master, "of app", "of other", region]
    [got] = lines_of(cluster.hosts.start(cluster.hosts.b, *words))
    assert all(got.pop("own")), got
    refused = {"get", "put", "delete", "exists", "list", "namespaces"}
    refused |= {"put_theirs", "put_a_chunk_of_theirs", "put_kv"}
    assert {name for name, outcome in got.items() if outcome == "Unwelcome"} == refused, got
    assert (got["locate"], got["stage"]) == (0, 0)
    assert (got["wait_for_it"], got["report_it"]) == ("NotFound", "NotFound")
    assert got["put_of_a_later_master"] == "Unavailable"
    assert got["put_of_a_version_of_no_master"] == "ProtocolError"
    # The node that pulled for it had nothing to open the other's memory with.
    assert "capability" in got["put_from_a_nodes_memory"]
    for words in (["cache", "clear", "--yes"], ["node", "drain", "near"], ["cache", "flush"]):
        assert cluster.mcctl("app", *words).returncode == 5


def test_a_gateways_key_opens_no_memory(cluster: Cluster) -> None:
    reader = cluster.start_reader("gw")
    assert all("gave no data key" in line_of(reader) for _ in range(3))


def test_nodes_refuse_a_revoked_key_too(cluster: Cluster) -> None:
    """The node is asked directly, at an address that was learned before."""
    asks = (
        "from pathlib import Path\n"
        "from daemons.client.identity import open_client_identity\n"
        "from daemons.client.probe import ask_probe\n"
        "from daemons.core.errors import McError\n"
        f"me = open_client_identity(Path({cluster.key('op')!r}))\n"
        "try:\n"
        f"  ask_probe('tcp://10.251.0.1:7710#{cluster.public('near')}', identity=me)\n"
        "  print('served')\n"
        "except McError as error: print(type(error).__name__)\n"
    )

    def ask() -> str:
        return cluster.python(asks).strip()

    assert ask() == "served"
    cluster.keys("revoke", "op", "--yes")
    wait_for(lambda: ask() == "Unwelcome", 20)
    cluster.keys("authorize", str(cluster.folder / "keys" / "op.pub"))
    wait_for(lambda: ask() == "served", 20)
