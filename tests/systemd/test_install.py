"""install.sh and the units on a real systemd: install, serve, crash, freeze, stop, reload, upgrade, uninstall.

The tests share one machine and run in this order: each goes on from what the one before left.
"""

import json
import re
import subprocess

import pytest
from kit.daemon import wait_for
from systemd.conftest import SCRIPTS, SOURCE, WHEELHOUSE, Machine
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

MASTER, NODE, GATEWAY = "mc-master.service", "mc-cachenode@a.service", "mc-gateway@a.service"
CONTROL, ENDPOINT = "tcp://127.0.0.1:7710", "tcp://127.0.0.1:7700"
NUM_BLOCKS = 100
SEGMENTS = "/var/lib/mooncake/segments"
MODEL = "/var/lib/mooncake/models/tiny"
CONFIGS = {
    "mc-cachenode@a": f'[node]\nid = "node-a"\n[segment]\nsize = "64MiB"\ndirectory = "{SEGMENTS}"\n',
    "mc-gateway@a": f'[models]\ntiny = "{MODEL}"\n',
}


def install(machine: Machine, *words: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
    script = f"{SOURCE}/systemd/install.sh"
    return machine.run(script, *words, fails=fails)


def install_offline(machine: Machine) -> str:
    """From the folder that `make wheelhouse` filled, by the script that lies in it."""
    return machine.run(f"{WHEELHOUSE}/systemd/install.sh", "--no-engine").stderr


def is_serving(machine: Machine, unit: str) -> bool:
    """And the master knows it, which it tells in its status line every five seconds; so ask mcctl."""
    if machine.show(unit, "ActiveState") != "active":
        return False
    listed = machine.run("mcctl", "node", "list", "--output", "json", fails=True)
    return listed.returncode == 0 and listed.stdout.count('"alive"') >= 1


def blocks(machine: Machine, verb: str, where: str) -> int:
    script = f"{SCRIPTS}/blocks.py"
    words = ["/opt/mooncake/bin/python", script, verb, where, str(NUM_BLOCKS)]
    return int(machine.run(*words).stdout)


def has_all_blocks(machine: Machine) -> bool:
    return blocks(machine, "check", ENDPOINT) == NUM_BLOCKS


def main_pid(machine: Machine, unit: str) -> int:
    return int(machine.show(unit, "MainPID"))


def is_new_process(machine: Machine, unit: str, old: int) -> bool:
    return machine.show(unit, "SubState") == "running" and main_pid(machine, unit) not in (0, old)


def files(machine: Machine) -> set[str]:
    """All where install.sh may write; empty folders that are left do no harm."""
    found: set[str] = set()
    for top in ("etc", "opt", "usr/local", "usr/lib/systemd", "var/lib"):
        for path in (machine.root / top).rglob("*"):
            if path.is_symlink() or not path.is_dir():
                found.add(str(path.relative_to(machine.root)))
    return {path for path in found if path not in _ACCOUNTS}


@pytest.fixture(scope="module")
def before(machine: Machine) -> set[str]:
    return files(machine)


def test_what_is_wrong_is_said_before_anything_changes(machine: Machine, before: set[str]) -> None:
    unknown = install(machine, "--colour", fails=True)
    assert (unknown.returncode, "unknown argument --colour" in unknown.stderr) == (2, True)
    no_torch = install(machine, "--wheelhouse", WHEELHOUSE, fails=True)
    assert (no_torch.returncode, "--no-engine" in no_torch.stderr) == (3, True)
    in_home = install(machine, "--no-engine", "--prefix", "/root/mooncake", fails=True)
    assert (in_home.returncode, "choose another --prefix" in in_home.stderr) == (3, True)
    no_python = install(machine, "--no-engine", "--python", "/bin/true/no", fails=True)
    assert (no_python.returncode, "no Python fits" in no_python.stderr) == (3, True)
    dry = install(machine, "--no-engine", "--wheelhouse", WHEELHOUSE, "--dry-run")
    assert f"would write: /usr/local/lib/systemd/system/{MASTER}" in dry.stdout
    assert files(machine) == before


def test_it_installs_without_a_network(machine: Machine) -> None:
    install_offline(machine)
    assert machine.run("mcctl", "--version").stdout.strip()
    assert "mcctl" in machine.run("bash", "-c", "man -w mc-cachenode mcctl").stdout
    completion = machine.root / "usr/local/share/bash-completion/completions/mcctl"
    assert "_MCCTL_COMPLETE=complete_bash" in completion.read_text()
    assert (machine.root / "usr/local/share/mooncake/grafana-dashboard.json").is_file()
    config = (machine.root / "etc/mooncake/mc-master.toml").stat()
    assert (config.st_mode & 0o777, config.st_uid) == (0o640, 0)
    analyzed = machine.run(
        *("systemd-analyze", "verify", "--recursive-errors=one", MASTER, NODE, GATEWAY),
        *("mc-prefill@a.service", "mc-decode@a.service", "mooncake.target"),
        fails=True,
    )
    # mc-prefill and mc-decode are there without torch, too.
    assert analyzed.returncode == 0, analyzed.stderr


def test_again_changes_nothing(machine: Machine) -> None:
    installed = files(machine)
    assert "is there already" in install_offline(machine)
    assert files(machine) == installed


def test_edited_config_stays_and_the_new_default_is_beside_it(machine: Machine) -> None:
    edited = machine.root / "etc/mooncake/mc-decode.toml"
    shipped = machine.root / "opt/mooncake/shipped/mc-decode.toml"
    default = edited.read_text()
    edited.write_text(default + "# mine\n")
    assert "mc-decode.toml" not in install_offline(machine), "the default is what it was"
    shipped.write_text("# as an earlier version had it\n")
    assert "the new defaults are beside it" in install_offline(machine)
    assert edited.read_text() == default + "# mine\n"
    assert edited.with_name("mc-decode.toml.new").read_text() == default
    assert "mc-decode.toml" not in install_offline(machine), "it is said once"


def test_failed_upgrade_leaves_the_earlier_version(machine: Machine) -> None:
    current = (machine.root / "opt/mooncake/current").readlink()
    machine.run("mkdir", "/run/broken")
    machine.run("bash", "-c", f"cp {WHEELHOUSE}/mooncake_mc-*.whl /run/broken")
    failed = install(machine, "--no-engine", "--wheelhouse", "/run/broken", fails=True)
    assert (failed.returncode, "is unchanged" in failed.stderr) == (1, True)
    assert (machine.root / "opt/mooncake/current").readlink() == current
    assert len(list((machine.root / "opt/mooncake/releases").iterdir())) == 1
    assert machine.run("mcctl", "--version").stdout


def write_tokenizer(machine: Machine) -> None:
    """All that a gateway reads of a model."""
    (machine.root / MODEL.lstrip("/")).mkdir()
    words = WordLevel({"end": 0}, unk_token="end")
    machine.write(f"{MODEL}/tokenizer.json", Tokenizer(words).to_str())
    machine.write(f"{MODEL}/tokenizer_config.json", '{"chat_template": "x", "eos_token": "end"}')
    machine.write(f"{MODEL}/config.json", '{"max_position_embeddings": 2048}')


def test_units_are_ready_when_they_serve(machine: Machine) -> None:
    write_tokenizer(machine)
    for name, text in CONFIGS.items():
        machine.write(f"/etc/mooncake/{name}.toml", text)
    units = (MASTER, NODE, GATEWAY)
    machine.run("systemctl", "enable", "--quiet", "mooncake.target", *units)
    machine.run("systemctl", "start", *units)
    assert [machine.show(unit, "ActiveState") for unit in units] == ["active"] * 3
    assert f"control={CONTROL}" in machine.show(NODE, "StatusText")
    assert "serving http=127.0.0.1:8000" in machine.show(GATEWAY, "StatusText")
    assert machine.show("var-lib-mooncake-segments.mount", "ActiveState") == "active"
    assert machine.show(NODE, "Slice") == "mooncake.slice"
    machine.run("curl", "--fail", "--silent", "http://127.0.0.1:9710/metrics")
    wait_for(lambda: is_serving(machine, NODE), what="the master to know the node")


def test_mcctl_sees_starts_and_ends_the_units(machine: Machine) -> None:
    def listed() -> dict[str, dict[str, object]]:
        found = json.loads(machine.run("mcctl", "service", "list", "-o", "json").stdout)["units"]
        return {unit["name"]: unit for unit in found}

    units = listed()
    assert set(units) == {"mc-master", "mc-cachenode@a", "mc-gateway@a"}
    node = units["mc-cachenode@a"]
    assert (node["state"], node["substate"], node["is_enabled"]) == ("active", "running", True)
    assert node["pid"] == main_pid(machine, NODE)
    assert f"control={CONTROL}" in str(node["status"])
    said = machine.run("mcctl", "logs", "cachenode@a", "-o", "json").stdout.splitlines()
    assert all(json.loads(line)["daemon"] == "mc-cachenode@a" for line in said)
    assert "Started" in said[-1] or len(said) > 1
    machine.run("mcctl", "service", "stop", "cachenode")
    assert listed()["mc-cachenode@a"]["state"] == "inactive"
    machine.run("mcctl", "service", "start", "cachenode@a")
    machine.run("mcctl", "service", "restart", "gateway")
    states = {name: unit["state"] for name, unit in listed().items()}
    assert states == dict.fromkeys(states, "active")
    missing = machine.run("mcctl", "service", "start", "cachenode@nobody", fails=True)
    assert missing.returncode != 0
    assert "Traceback" not in missing.stderr
    wait_for(lambda: is_serving(machine, NODE), what="the master to know the node")


def test_blocks_are_back_after_restart_and_after_stop_and_start(machine: Machine) -> None:
    assert blocks(machine, "put", CONTROL) == NUM_BLOCKS
    wait_for(lambda: has_all_blocks(machine), what="the put blocks")
    machine.run("systemctl", "restart", NODE)
    wait_for(lambda: has_all_blocks(machine), what="the blocks after a restart")
    machine.run("systemctl", "stop", NODE)
    assert blocks(machine, "check", ENDPOINT) == 0
    assert machine.show("var-lib-mooncake-segments.mount", "ActiveState") == "active"
    machine.run("systemctl", "start", NODE)
    wait_for(lambda: has_all_blocks(machine), what="the blocks after stop and start")


@pytest.mark.parametrize("unit", [NODE, MASTER, GATEWAY])
def test_killed_daemon_is_started_again(machine: Machine, unit: str) -> None:
    old = main_pid(machine, unit)
    machine.run("systemctl", "kill", "--signal", "KILL", unit)
    wait_for(lambda: is_new_process(machine, unit, old), what=f"{unit} to be back")
    wait_for(lambda: has_all_blocks(machine), what="the blocks")


def test_frozen_daemon_is_killed_by_the_watchdog(machine: Machine) -> None:
    """With less patience than shipped, to save time."""
    machine.run("mkdir", "-p", f"/run/systemd/system/{NODE}.d")
    machine.write(f"/run/systemd/system/{NODE}.d/test.conf", "[Service]\nWatchdogSec=2s\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", NODE)
    old = main_pid(machine, NODE)
    machine.run("systemctl", "kill", "--signal", "STOP", NODE)
    wait_for(lambda: is_new_process(machine, NODE, old), what="the watchdog")
    assert "Watchdog timeout" in machine.journal(NODE)
    wait_for(lambda: has_all_blocks(machine), what="the blocks")


def test_reload_takes_over_what_is_documented(machine: Machine) -> None:
    old = main_pid(machine, NODE)
    machine.write(
        "/etc/mooncake/mc-cachenode@a.toml",
        CONFIGS["mc-cachenode@a"] + '[log]\nlevel = "debug"\n',
    )
    machine.run("systemctl", "reload", NODE)
    wait_for(lambda: "config reloaded" in machine.journal(NODE), what="the reload")
    machine.write("/etc/mooncake/mc-cachenode@a.toml", "[nodes]\n")
    machine.run("systemctl", "reload", NODE)
    wait_for(lambda: "reload refused" in machine.journal(NODE), what="the refusal")
    assert main_pid(machine, NODE) == old
    assert machine.show(NODE, "ActiveState") == "active"


def test_wrong_config_is_not_tried_again(machine: Machine) -> None:
    """The file is the one that the test before left."""
    machine.run("systemctl", "stop", NODE)
    machine.run("systemctl", "reset-failed", fails=True)
    started = machine.run("systemctl", "start", NODE, fails=True)
    assert started.returncode != 0
    assert machine.show(NODE, "ExecMainStatus") == "78"
    assert machine.show(NODE, "ActiveState") == "failed"
    assert machine.show(NODE, "NRestarts") == "0"
    machine.write("/etc/mooncake/mc-cachenode@a.toml", CONFIGS["mc-cachenode@a"])
    machine.run("systemctl", "start", NODE)
    wait_for(lambda: has_all_blocks(machine), what="the blocks")


def test_upgrade_restarts_nothing_and_removes_what_nobody_runs(machine: Machine) -> None:
    releases = machine.root / "opt/mooncake/releases"
    (first,) = (path.name for path in releases.iterdir())
    for name in ("unused", "running"):
        (releases / name).mkdir()
    held = "/opt/mooncake/releases/running/held"
    machine.write(held, "")
    machine.run("systemd-run", "--quiet", "--unit", "old", "tail", "--follow", held)
    # A wheelhouse with another file is another version.
    machine.run("cp", "-r", WHEELHOUSE, "/run/next")
    machine.write("/run/next/other-1-py3-none-any.whl", "")
    old = main_pid(machine, NODE)
    install(machine, "--no-engine", "--wheelhouse", "/run/next")
    assert main_pid(machine, NODE) == old
    left = {path.name for path in releases.iterdir()}
    assert len(left) == 3
    assert {first, "running"} < left, "the one before, and what a process runs from"
    for unit in (MASTER, NODE, GATEWAY):
        machine.run("systemctl", "restart", unit)
    wait_for(lambda: has_all_blocks(machine), what="the blocks after the upgrade")
    machine.run("systemctl", "stop", "old")


def test_stop_of_the_target_drains_all(machine: Machine) -> None:
    units = (MASTER, NODE, GATEWAY)
    machine.run("systemctl", "stop", "mooncake.target", *units)
    for unit in units:
        assert machine.show(unit, "ActiveState") == "inactive"
        assert machine.show(unit, "Result") == "success", "ended by itself, within TimeoutStopSec"
    assert re.search(r"segment kept .* blocks=100;", machine.journal(NODE))
    machine.run("systemctl", "start", "mooncake.target")
    wait_for(lambda: has_all_blocks(machine), what="the blocks after the target's start")


def test_keys_are_credentials_of_the_units(machine: Machine) -> None:
    """As mc-deploy(7) has it: made by root, read by the daemons' user through systemd alone."""
    units = {"master": "mc-master", "cachenode": "mc-cachenode-a", "gateway": "mc-gateway-a"}
    for role, credential in units.items():
        node = {"cachenode": "node-a"}.get(role, role)
        machine.run("mcctl", "keys", "generate", node, "--role", role, "--authorize")
        script = f"mkdir -p /etc/credstore && mv /etc/mooncake/keys/{node}.key /etc/credstore/{credential}.key"
        machine.run("bash", "-c", script)
    machine.run("mcctl", "keys", "generate", "root", "--role", "admin", "--authorize")
    public = (machine.root / "etc/mooncake/keys/master.pub").read_text()
    (master_key,) = re.findall(r'public = "(\w+)"', public)
    nodes = f'[security]\nkey_file = "{{}}.key"\nmaster_key = "{master_key}"\n'
    for name, text in CONFIGS.items():
        config = text + nodes.format(name.replace("@", "-"))
        machine.write(f"/etc/mooncake/{name}.toml", config)
    master = 'key_file = "mc-master.key"\nauthorized_file = "/etc/mooncake/authorized.toml"\n'
    machine.write("/etc/mooncake/mc-master.toml", f"[security]\n{master}")
    machine.run("systemctl", "restart", MASTER, NODE, GATEWAY)
    shown = ("--key-file", "/etc/mooncake/keys/root.key", "--master-key", master_key)
    listing = ("mcctl", "node", "list", "--output", "json")

    def is_joined() -> bool:
        return machine.run(*listing, *shown, fails=True).stdout.count('"alive"') == 2

    wait_for(is_joined, what="node and gateway to join with their keys")
    assert machine.run(*listing, fails=True).returncode in (5, 7)
    machine.run("mcctl", "keys", "revoke", "node-a", "--yes")
    wait_for(lambda: not is_joined(), what="the revoked node to be put out")


def test_uninstall_leaves_what_is_the_operators_and_purge_nothing(
    machine: Machine, before: set[str]
) -> None:
    install(machine, "--uninstall")
    left = files(machine) - before
    kept = ("etc/credstore/", "etc/mooncake/", "var/lib/mooncake/")
    assert left == {x for x in left if x.startswith(kept)}
    assert "etc/mooncake/mc-cachenode@a.toml" in left
    assert main_pid(machine, NODE) == 0
    assert "nothing is installed" in install(machine, "--uninstall").stderr
    assert machine.run("getent", "passwd", "mooncake").stdout
    install_offline(machine)
    install(machine, "--uninstall", "--purge")
    assert files(machine) - before == set()
    assert not (machine.root / "var/lib/mooncake").exists()
    assert not machine.run("getent", "passwd", "mooncake", fails=True).stdout


_ACCOUNTS = {"etc/.pwd.lock"} | {
    f"etc/{name}{end}" for name in ("passwd", "group", "shadow", "gshadow") for end in ("", "-")
}
"""Written anew with every user that comes or goes."""
