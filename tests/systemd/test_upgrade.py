"""A cluster with keys: what was accepted is answered while daemons stop and while all of them are upgraded."""

import re
from pathlib import Path

from kit.daemon import wait_for
from systemd.cluster import (
    CONFIGS,
    DECODE,
    GATEWAY,
    MASTER,
    NODE_A,
    NODE_B,
    PREFILL,
    UNITS,
    WAIT_S,
    Streams,
    config_file,
    expect_chat,
    lend_torch,
    main_pid,
    pids,
    role_of,
)
from systemd.machine import WHEELHOUSE, Machine, install

NUM_STREAMS = 4
SHOWN = "--key-file /etc/mooncake/keys/root.key --master-key"


def test_stop_of_the_target_answers_what_was_accepted(machine: Machine, tmp_path: Path) -> None:
    streams = Streams(machine, tmp_path, NUM_STREAMS)
    machine.run("systemctl", "stop", "mooncake.target", *UNITS)
    streams.expect_all()
    for unit in UNITS:
        assert machine.show(unit, "ActiveState") == "inactive"
        assert machine.show(unit, "Result") == "success", "ended by itself, within TimeoutStopSec"
    assert re.search(r"segment kept .* blocks=[1-9]", machine.journal(NODE_A))


def test_keys_and_secret_are_credentials_of_the_units(machine: Machine) -> None:
    """As mc-deploy(7) has it: made by root, read by the daemons' user through systemd alone."""
    for unit in UNITS:
        node = re.findall(r'id = "(\S+)"', CONFIGS[unit])[0]
        machine.run("mcctl", "keys", "generate", node, "--role", role_of(unit), "--authorize")
        name = unit.removesuffix(".service").replace("@", "-")
        machine.run(
            "install", "-Dm600", f"/etc/mooncake/keys/{node}.key", f"/etc/credstore/{name}.key"
        )
    machine.run("bash", "-c", "umask 077; openssl rand -hex 32 >/etc/credstore/mooncake.secret")
    machine.run("mcctl", "keys", "generate", "root", "--role", "admin", "--authorize")
    for unit in UNITS:
        machine.write(config_file(unit), CONFIGS[unit] + security(machine, unit))
    machine.run("systemctl", "start", "mooncake.target", *UNITS)
    expect_chat(machine)
    wait_for(lambda: alive(machine) == 5, WAIT_S, "all nodes to join with their keys")
    assert machine.run("mcctl", "node", "list", fails=True).returncode in (5, 7)


def test_upgrade_restarts_nothing_and_a_rolling_restart_loses_no_answer(
    machine: Machine, tmp_path: Path
) -> None:
    releases = machine.root / "opt/mooncake/releases"
    (first,) = (path.name for path in releases.iterdir())
    (releases / "unused").mkdir()
    # A wheelhouse with another file is another version.
    machine.run("cp", "-r", WHEELHOUSE, "/run/next")
    machine.write("/run/next/other-1-py3-none-any.whl", "")
    old = pids(machine, *UNITS)
    install(machine, "--no-engine", "--wheelhouse", "/run/next")
    assert pids(machine, *UNITS) == old
    (second,) = {path.name for path in releases.iterdir()} - {first}
    lend_torch(machine)
    answer = expect_chat(machine)
    streams = Streams(machine, tmp_path, NUM_STREAMS)
    for unit in (MASTER, NODE_A, NODE_B, DECODE, PREFILL, GATEWAY):  # as mc-deploy(7) has it
        machine.run("systemctl", "restart", unit)
        command = machine.run("cat", f"/proc/{main_pid(machine, unit)}/cmdline").stdout
        assert f"/releases/{second}/" in command
    streams.expect_all()
    assert expect_chat(machine) == answer


def test_revoked_node_is_put_out(machine: Machine) -> None:
    machine.run("mcctl", "keys", "revoke", "node-a", "--yes")
    wait_for(lambda: alive(machine) == 4, WAIT_S, "the revoked node to be put out")


def test_uninstall_leaves_what_is_the_operators_and_purge_nothing(
    machine: Machine, before: set[str]
) -> None:
    install(machine, "--uninstall")
    assert [main_pid(machine, unit) for unit in UNITS] == [0] * len(UNITS)
    kept = ("etc/credstore/", "etc/mooncake/", "var/lib/mooncake/")
    left = machine.files() - before
    assert left == {path for path in left if path.startswith(kept)}
    assert config_file(NODE_A).lstrip("/") in left
    install(machine, "--uninstall", "--purge")
    assert machine.files() == before
    assert not machine.run("getent", "passwd", "mooncake", fails=True).stdout


def security(machine: Machine, unit: str) -> str:
    """What is to be added to this daemon's config."""
    name = unit.removesuffix(".service").replace("@", "-")
    text = f'[security]\nkey_file = "{name}.key"\n'
    if unit == MASTER:
        text += 'authorized_file = "/etc/mooncake/authorized.toml"\n'
        return text + '[access]\nsecret_file = "mooncake.secret"\n'
    text += f'master_key = "{master_key(machine)}"\n'
    return text if unit == GATEWAY else text + '[transfer]\nsecret_file = "mooncake.secret"\n'


def master_key(machine: Machine) -> str:
    public = (machine.root / "etc/mooncake/keys/master.pub").read_text()
    (found,) = re.findall(r'public = "(\w+)"', public)
    return str(found)


def alive(machine: Machine) -> int:
    listing = ("mcctl", "node", "list", "--output", "json", *SHOWN.split(), master_key(machine))
    return machine.run(*listing, fails=True).stdout.count('"alive"')
