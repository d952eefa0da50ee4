"""mc-deploy(7) followed word for word, pasted into a shell: three bare machines become a cluster of a master with a
gateway, two cache nodes, two prefill and two decode instances, with keys; it is upgraded, loses a key, and is removed.

All commands come from the page; of its first section the values that are the reader's own are those below.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.daemon import wait_for
from kit.deploy_page import commands, machines
from systemd.booting import engine_folder
from systemd.cluster import WAIT_S, Api, Streams, chat, expect_chat, main_pid
from systemd.hosts import ADDRESSES, Hosts, hosts_on_a_network
from systemd.model import write_model

MASTER, A, B = ADDRESSES
VALUES = {
    "MASTER": MASTER,
    "CACHE": f'"{A} {B}"',
    "PREFILL": f'"{A} {B}"',
    "DECODE": f'"{A} {B}"',
    "MODEL": "~/tiny",
    "POOL": "64MiB",
    "DEVICE": "cpu",
    "KV": "64MiB",
}
URL = f"http://{MASTER}:8000"
INSTANCES = ("mc-cachenode@a.service", "mc-prefill@a.service", "mc-decode@a.service")
UNITS = {MASTER: ("mc-master.service", "mc-gateway@a.service"), A: INSTANCES, B: INSTANCES}
REVOKED = f"cache-{B}"
NUM_STREAMS = 4
MAX_LINES = 10


@pytest.fixture(scope="module")
def hosts(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("operator")
    write_model(folder / "tiny")
    with hosts_on_a_network(folder, wheelhouse, engine_folder()) as made:
        yield made


@pytest.fixture(scope="module")
def bare(hosts: Hosts) -> dict[str, set[str]]:
    """Their files before: ask for it first."""
    return {address: machine.files() for address, machine in hosts.machines.items()}


def follow(hosts: Hosts, *sections: str) -> str:
    return hosts.type(machines(VALUES) + commands(*sections))


def test_bare_machines_become_a_cluster_with_keys_that_answers(
    hosts: Hosts, bare: dict[str, set[str]]
) -> None:
    assert all(bare.values())
    said = follow(
        hosts,
        "2. The program",
        "3. Keys",
        "4. The model",
        "5. The configs",
        "6. Start",
        "7. See it serve",
    )
    for role in ("cache", "prefill", "decode"):
        assert f"{role}-{A}" in said
        assert f"{role}-{B}" in said
    assert json.loads(said.splitlines()[-1])["choices"][0]["message"]["content"]
    for address, units in UNITS.items():
        for unit in units:
            assert hosts.machines[address].show(unit, "ActiveState") == "active"


def test_who_has_no_key_is_refused_and_told_how_to_get_one(hosts: Hosts) -> None:
    asked = hosts.machines[A].run(
        "mcctl", "node", "list", "--endpoint", f"tcp://{MASTER}:7700", fails=True
    )
    assert asked.returncode not in (0, 1)
    assert "mcctl keys generate" in asked.stderr


def test_rolling_upgrade_loses_no_answer_and_no_block(hosts: Hosts, tmp_path: Path) -> None:
    master = hosts.machines[MASTER]
    given = ("mcctl", "tenant", "key", "team", "--file", "/etc/mooncake/tenants.toml")
    api = Api(URL, master.run(*given).stdout.strip())
    before = expect_chat(master, api=api)
    (hosts.folder / "dist/wheelhouse/other-1-py3-none-any.whl").touch()  # is another version
    old = current(hosts, A)
    follow(hosts, "2. The program")
    streams = Streams(master, tmp_path, NUM_STREAMS, api=api)
    follow(hosts, "Rolling upgrade")
    streams.expect_all()
    assert current(hosts, A) != old
    for address, units in UNITS.items():
        for unit in units:
            assert runs_from(hosts, address, unit) == current(hosts, address)
    assert expect_chat(master, api=api) == before
    back = commands("Back to the version before").replace("VERSION", old)
    assert old in hosts.type(f"{machines(VALUES)}host={A}\n{back}")
    assert current(hosts, A) == runs_from(hosts, A, INSTANCES[0]) == old


def current(hosts: Hosts, address: str) -> str:
    return (hosts.machines[address].root / "opt/mooncake/current").readlink().name


def runs_from(hosts: Hosts, address: str, unit: str) -> str:
    """The version."""
    machine = hosts.machines[address]
    ran = machine.run("cat", f"/proc/{main_pid(machine, unit)}/cmdline").stdout
    return ran.split("/releases/")[1].split("/")[0]


def test_revoked_node_is_put_out_and_does_not_fill_the_log(hosts: Hosts) -> None:
    [line] = re.findall(
        r"^on .* keys revoke .*\n", commands("Keys of nodes that come and go"), re.M
    )
    assert REVOKED in line
    hosts.type(machines(VALUES) + line)
    master = hosts.machines[MASTER]

    def refused() -> int:
        page = master.run("curl", "--silent", "--fail", "http://127.0.0.1:9700/metrics").stdout
        [found] = re.findall(r"^mc_master_refused (\S+)$", page, re.M)
        return int(float(found))

    wait_for(lambda: refused() > 2 * MAX_LINES, WAIT_S, "the revoked node to knock often")
    lines = [line for line in master.journal("mc-master").splitlines() if REVOKED in line]
    assert 1 <= sum("refused" in line for line in lines) <= MAX_LINES
    listed = master.run("mcctl", "node", "list", "--output", "json").stdout
    states = {node["node"]["node"]: node["state"] for node in json.loads(listed)["nodes"]}
    assert states.pop(REVOKED, "dead") == "dead"
    assert set(states.values()) == {"alive"}


def test_gateway_serves_tenants_alone(hosts: Hosts) -> None:
    assert "acme" in follow(hosts, "Tenants")
    assert chat(hosts.machines[MASTER], api=Api(URL)) is None


def test_uninstall_leaves_nothing(hosts: Hosts, bare: dict[str, set[str]]) -> None:
    follow(hosts, "Uninstall")
    for address, machine in hosts.machines.items():
        assert [main_pid(machine, unit) for unit in UNITS[address]] == [0] * len(UNITS[address])
        assert machine.files() == bare[address]
        assert not machine.run("getent", "passwd", "mooncake", fails=True).stdout
