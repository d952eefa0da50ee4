"""mc-deploy(7) followed word for word, pasted into a shell: three bare machines become a cluster of a master with a
gateway, two cache nodes, two prefill and two decode instances, with keys; it is upgraded, loses a key, and is removed.

All commands come from the page; of its first section the values that are the reader's own are those below.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.daemon import wait_for
from kit.deploy_page import PAGE, block, commands, function, machines, sections, tagged
from kit.examples import examples_of
from systemd.booting import engine_folder
from systemd.cluster import (
    WAIT_S,
    Api,
    Streams,
    Traffic,
    chat,
    expect_chat,
    main_pid,
    pids,
    wait_until_new,
)
from systemd.deployed import (
    INSTANCES,
    MASTER,
    UNITS,
    URL,
    VALUES,
    A,
    B,
    api_of,
    current,
    expect_shown,
    follow,
    huge_pages,
    mounted,
    runs_from,
)
from systemd.hosts import Hosts, hosts_on_a_network
from systemd.letting_in import has_server
from systemd.machine import REMARKS, Machine
from systemd.model import write_model

GATEWAY_PAGE = PAGE.with_name("mc-gateway.8")
REVOKED = f"cache-{B}"
KEYS, MEMORY = "Keys of nodes that come and go", "The cache's memory"
STOP = "systemctl stop mooncake.target"
NUM_STREAMS = 4
MAX_LINES = 10


@pytest.fixture(scope="module")
def hosts(lent_wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("operator")
    write_model(folder / "tiny")
    with hosts_on_a_network(folder, lent_wheelhouse, engine_folder()) as made:
        yield made


@pytest.fixture(scope="module")
def bare(hosts: Hosts) -> dict[str, set[str]]:
    """Their files before: ask for it first."""
    return {address: machine.files() for address, machine in hosts.machines.items()}


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
    assert json.loads(said.rstrip("\n").split("\n")[-1])["choices"][0]["message"]["content"]
    for address, units in UNITS.items():
        for unit in units:
            assert hosts.machines[address].show(unit, "ActiveState") == "active"
        hosts.machines[address].run("mcctl", "doctor")  # finds no error


def test_who_has_no_key_is_refused_and_told_how_to_get_one(hosts: Hosts) -> None:
    asked = hosts.machines[A].run(
        "mcctl", "node", "list", "--endpoint", f"tcp://{MASTER}:7700", fails=True
    )
    assert asked.returncode not in (0, 1)
    assert "mcctl keys generate" in asked.stderr


def test_rolling_upgrade_loses_no_answer_and_no_block(hosts: Hosts, tmp_path: Path) -> None:
    master, api = hosts.machines[MASTER], api_of(hosts, "team")
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


def test_keys_are_changed_one_by_one_and_no_request_is_lost(hosts: Hosts, tmp_path: Path) -> None:
    """Of one daemon of each kind; the gateway has no other beside it, so nobody asks while that one starts."""
    master, api = hosts.machines[MASTER], api_of(hosts, "team")
    *others, gateway = block(KEYS, "renew").splitlines(keepends=True)
    start = machines(VALUES | {"CACHE": A, "PREFILL": A, "DECODE": A})
    streams, traffic = (
        Streams(master, tmp_path, NUM_STREAMS, api=api),
        Traffic(master, tmp_path, api=api),
    )
    hosts.type(start + "".join(others))
    traffic.expect_all()
    hosts.type(start + function(KEYS, "ready") + function(KEYS, "renew") + gateway)
    streams.expect_all()
    listed = json.loads(master.run("mcctl", "keys", "list", "--output", "json").stdout)["keys"]
    revoked = {key["node"] for key in listed if key.get("revoked")}
    assert revoked == {f"{role}-{A}" for role in ("cache", "decode", "prefill")} | {"gateway-a"}
    expect_chat(master, api=api)


def test_commands_for_a_running_host_do_what_they_say(hosts: Hosts, tmp_path: Path) -> None:
    master, host = hosts.machines[MASTER], hosts.machines[A]
    *_, drain, stop = lines = tagged("RUNNING IT")
    assert stop == STOP
    going_on = [line for line in lines if line.endswith(("--watch", "--follow", "-f"))]
    assert len(going_on) == len(lines) - 3
    expect_shown(host, going_on, "mc-cachenode", tmp_path)
    [reload] = [line for line in lines if "reload" in line]
    master.run(*reload.split())
    wait_for(lambda: "config reloaded" in master.journal("mc-master"), WAIT_S, "a reload")
    assert REVOKED in drain
    master.run(*drain.split())
    drained = json.loads(master.run("mcctl", "node", "list", "--output", "json").stdout)["nodes"]
    assert [each["node"]["node"] for each in drained if each["is_draining"]] == [REVOKED]
    expect_chat(master, api=api_of(hosts, "team"))


def test_revoked_node_is_put_out_and_does_not_fill_the_log(hosts: Hosts) -> None:
    [line] = re.findall(r"^on .* keys revoke .*\n", commands(KEYS), re.M)
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


def test_second_cache_node_stays_on_its_numa_node(hosts: Hosts) -> None:
    host = hosts.machines[A]
    pinned = block("Several instances on a host", "NUMAPolicy")
    assert "SECOND=1 " in pinned
    hosts.type(
        machines(VALUES)
        + f"host={A}\n"
        + function("3. Keys", "key")
        + pinned.replace("SECOND=1", "SECOND=0")
    )
    unit = "mc-cachenode@b.service"
    host.run("systemd-analyze", "verify", "--man=no", "--recursive-errors=one", unit)
    process = host.root / f"proc/{main_pid(host, unit)}"
    areas = (process / "numa_maps").read_text().splitlines()
    policies = [area.split()[1] for area in areas if " heap" in area or ".segment" in area]
    assert set(policies) == {"bind:0"}, areas
    [allowed] = re.findall(r"^Cpus_allowed_list:\s+(\S+)$", (process / "status").read_text(), re.M)
    assert allowed == (host.root / "sys/devices/system/node/node0/cpulist").read_text().strip()
    hosts.machines[MASTER].run("mcctl", "wait", "ready", "--nodes", "7", "--timeout", "60")


def test_memory_of_a_host_grows_in_use_and_moves_to_huge_pages(hosts: Hosts) -> None:
    host, unit = hosts.machines[A], INSTANCES[0]
    start, old = machines(VALUES) + f"host={A}\n", main_pid(host, unit)
    hosts.type(start + block(MEMORY, "size="))
    assert "size=209715200k" in mounted(host)
    assert main_pid(host, unit) == old
    with huge_pages(host, 32) as pages:
        if pages:
            hosts.type(start + re.sub("PAGES=[0-9]+", f"PAGES={pages}", block(MEMORY, "hugetlbfs")))
            assert " hugetlbfs " in mounted(host)
            expect_kept(hosts, lambda: stop_and_start(host, unit))
        hosts.type(start + block(MEMORY, "systemctl stop 'mc-cachenode@*' var-lib"))
        assert not mounted(host)


def test_fd_store_keeps_the_blocks_over_a_stop_where_systemd_can(hosts: Hosts) -> None:
    host, unit = hosts.machines[A], INSTANCES[0]
    config = "/etc/mooncake/mc-cachenode@a.toml"
    host.run("sed", "-i", "/^index_directory/d; s/^directory = .*/directory = ''/", config)
    host.run("systemctl", "restart", unit)
    hosts.type(f"{machines(VALUES)}host={A}\n{block(MEMORY, 'FileDescriptorStorePreserve')}")
    preserves = host.show(unit, "FileDescriptorStorePreserve")
    if not preserves:
        version = host.run("systemctl", "--version").stdout.splitlines()[0]
        REMARKS.append(f"{version} keeps no fd store over a stop: that was not tried")
        return
    assert preserves == "yes"
    expect_kept(hosts, lambda: stop_and_start(host, unit))


def stop_and_start(host: Machine, unit: str) -> None:
    """A stop removes what the unit's user has in /dev/shm, the index too, but for RemoveIPC=no."""
    host.run("systemctl", "stop", unit)
    host.run("systemctl", "start", unit)


def expect_kept(hosts: Hosts, happens: Callable[[], object]) -> None:
    """What was put into the pool before is in it after that."""
    file = f"/var/lib/mooncake/models/{Path(VALUES['MODEL']).name}/tokenizer.json"
    master = hosts.machines[MASTER]

    def succeeds(line: str) -> bool:
        return master.run("bash", "-c", line, fails=True).returncode == 0

    wait_for(lambda: succeeds(f"mcctl cache put kept {file}"), WAIT_S, "a cache node")
    happens()
    get = f"mcctl cache get kept --out /run/kept && cmp /run/kept {file}"
    wait_for(lambda: succeeds(get), WAIT_S, "what was kept")


def test_gateway_serves_tenants_alone_and_counts_what_it_was_giving_when_it_is_killed(
    hosts: Hosts, tmp_path: Path
) -> None:
    assert "acme" in follow(hosts, "Tenants")
    master, unit = hosts.machines[MASTER], UNITS[MASTER][1]
    assert chat(master, api=Api(URL)) is None
    noted = master.root / "var/lib/mooncake/mc-gateway-a/running-gateway-a.jsonl"
    old = pids(master, unit)
    streams = Streams(master, tmp_path, 1, max_tokens=1000, api=api_of(hosts, "acme"))
    signal_decode(hosts, "STOP")  # or the answer could have ended
    wait_for(noted.exists, WAIT_S, "a note of what runs")
    master.run("systemctl", "kill", "--signal", "KILL", unit)
    wait_until_new(master, old)
    signal_decode(hosts, "CONT")
    streams.expect_cut()
    said = master.run("mcctl", "tenant", "usage", "acme", "--output", "json").stdout
    [used] = json.loads(said)["usage"]
    assert used["requests"] == 1
    assert used["completion_tokens"] >= 1


def signal_decode(hosts: Hosts, name: str) -> None:
    for address in (A, B):
        hosts.machines[address].run("systemctl", "kill", "--signal", name, INSTANCES[2])


def test_without_keys_the_cluster_is_open_and_is_seen_from_afar(hosts: Hosts) -> None:
    """Of one host's cache node alone: an instance that starts takes seconds."""
    config = "/etc/mooncake/mc-gateway@a.toml"
    hosts.machines[MASTER].run("sed", "-i", "s/^host = .*/host = '127.0.0.1'/", config)
    start = machines(VALUES | {"CACHE": A, "PREFILL": "", "DECODE": ""})
    hosts.type(start + block(KEYS, "--insecure"))
    asked = ("mcctl", "node", "list", "--endpoint", f"tcp://{MASTER}:7700", "--output", "json")
    other = hosts.machines[B]
    wait_for(lambda: f"cache-{A}" in other.run(*asked, fails=True).stdout, WAIT_S, "a node")
    [line] = [each.text for each in examples_of(GATEWAY_PAGE) if each.text.startswith("ssh ")]
    if not has_server(hosts.folder):
        return  # the remarks say so
    with hosts.goes_on(line.replace("HOST", f"root@{MASTER}")):
        get = "curl --silent --fail --retry 60 --retry-delay 1 --retry-connrefused"
        assert "<html" in hosts.type(f"{get} http://127.0.0.1:8000/status\n")


def test_uninstall_leaves_nothing(hosts: Hosts, bare: dict[str, set[str]]) -> None:
    other = hosts.machines[B]
    other.run(*STOP.split())
    wait_for(lambda: not any(pids(other, *INSTANCES).values()), WAIT_S, "all daemons to end")
    follow(hosts, "Uninstall")
    for address, machine in hosts.machines.items():
        assert [main_pid(machine, unit) for unit in UNITS[address]] == [0] * len(UNITS[address])
        assert machine.files() == bare[address]
        assert not list((machine.root / "dev/shm").iterdir())
        assert not machine.run("getent", "passwd", "mooncake", fails=True).stdout


def test_every_line_of_the_page_was_typed(hosts: Hosts, request: pytest.FixtureRequest) -> None:
    """But for values of the reader's own, and for huge pages where the kernel gives none."""
    if request.config.option.keyword:
        pytest.skip("some of the tests before were left out")
    typed = "".join(hosts.typed)
    lines = [line.partition("VERSION")[0] for line in commands(*sections()).splitlines()]
    left = {line for line in lines if line not in typed and not re.match("[A-Z]+=", line)}
    if any(remark.startswith("the kernel gives no") for remark in REMARKS):
        left -= set(block(MEMORY, "hugetlbfs").splitlines())
    assert not left
