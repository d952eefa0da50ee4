"""A whole cluster of units: it serves, and goes on when daemons crash, hang, stop, start and read their files again."""

import json
import re
from pathlib import Path

from kit.daemon import wait_for
from kit.examples import examples_of
from systemd.cluster import (
    CONFIGS,
    CONTROL,
    DECODE,
    ENDPOINT,
    GATEWAY,
    MASTER,
    MODEL,
    NODE_A,
    NODE_B,
    NUM_BLOCKS,
    PREFILL,
    UNITS,
    WAIT_S,
    Streams,
    blocks,
    config_file,
    expect_blocks,
    expect_chat,
    lend_torch,
    main_pid,
    pids,
    put_blocks,
    wait_until_new,
    write_configs,
)
from systemd.machine import REMARKS, Machine
from systemd.model import write_model

MOUNT = "var-lib-mooncake-segments.mount"
MAX_EXPOSURE = 2.0
NUM_STREAMS = 4


def test_lines_of_the_readme_bring_up_all_units_each_ready_when_it_serves(machine: Machine) -> None:
    write_model(machine.root / MODEL.lstrip("/"))
    lend_torch(machine)
    write_configs(machine)
    readme = examples_of(Path(__file__).parents[2] / "README.md")
    lines = [each.text for each in readme if each.text.startswith("systemctl ")]
    assert len(lines) == 2
    for line in (*lines, f"systemctl enable --now {NODE_B}"):
        machine.run(*line.split())
    assert [machine.show(unit, "ActiveState") for unit in UNITS] == ["active"] * len(UNITS)
    said = {unit: machine.show(unit, "StatusText") for unit in UNITS}
    assert f"at={ENDPOINT}" in said[MASTER]
    for unit, control in CONTROL.items():
        assert f"control={control} blocks=0 used=0 B of 64.0 MiB" in said[unit]
    for unit in (PREFILL, DECODE):
        assert re.search(r"model=tiny listen=\S+ live=0 master=", said[unit])
    assert "serving http=127.0.0.1:8000 models=tiny in_flight=0" in said[GATEWAY]
    assert machine.show(MOUNT, "ActiveState") == "active"
    machine.run("curl", "--fail", "--silent", "http://127.0.0.1:9710/metrics")


def test_units_are_limited_and_sandboxed(machine: Machine) -> None:
    assert machine.show("mooncake.slice", "CPUWeight") == "1000"
    for unit in UNITS:
        assert machine.show(unit, "Slice") == "mooncake.slice"
        assert machine.show(unit, "LimitNOFILE") == "65536"
        assert machine.show(unit, "LimitCORE") == "0"
        assert 0 < int(machine.show(unit, "TasksMax")) <= 4096
        analyzed = machine.run("systemd-analyze", "security", "--no-pager", unit).stdout
        exposure = re.findall(r"Overall exposure level for \S+: (\S+)", analyzed)
        assert len(exposure) == 1, analyzed
        assert float(exposure[0]) <= MAX_EXPOSURE
        REMARKS.append(f"systemd-analyze security {unit}: {exposure[0]}")


def test_chat_is_answered_and_the_next_one_reuses_its_prompt(machine: Machine) -> None:
    assert expect_chat(machine, reuses=False) == expect_chat(machine)


def test_mcctl_sees_starts_and_ends_the_units(machine: Machine) -> None:
    def listed() -> dict[str, dict[str, object]]:
        found = json.loads(machine.run("mcctl", "service", "list", "-o", "json").stdout)["units"]
        return {unit["name"]: unit for unit in found}

    units = listed()
    assert set(units) == {unit.removesuffix(".service") for unit in UNITS}
    node = units["mc-cachenode@b"]
    assert (node["state"], node["substate"], node["is_enabled"]) == ("active", "running", True)
    assert node["pid"] == main_pid(machine, NODE_B)
    assert f"control={CONTROL[NODE_B]}" in str(node["status"])
    said = machine.run("mcctl", "logs", "cachenode@b", "-o", "json").stdout.splitlines()
    assert said
    assert all(json.loads(line)["daemon"] == "mc-cachenode@b" for line in said)
    machine.run("mcctl", "service", "stop", "cachenode@b")
    assert machine.show(NODE_B, "ActiveState") == "inactive"
    machine.run("mcctl", "service", "start", "cachenode@b")
    assert machine.show(NODE_B, "ActiveState") == "active"
    missing = machine.run("mcctl", "service", "start", "cachenode@nobody", fails=True)
    assert missing.returncode != 0
    assert "Traceback" not in missing.stderr


def test_blocks_are_back_after_a_restart_from_files_and_from_the_fd_store(machine: Machine) -> None:
    for unit in (NODE_A, NODE_B):
        put_blocks(machine, unit)
    expect_blocks(machine, NODE_A, NODE_B)
    assert machine.show(NODE_A, "NFileDescriptorStore") == "0"
    assert machine.show(NODE_B, "NFileDescriptorStore") == "2", "a segment and its index"
    machine.run("systemctl", "restart", NODE_A, NODE_B)
    expect_blocks(machine, NODE_A, NODE_B)
    assert machine.show(NODE_B, "NFileDescriptorStore") == "2"


def test_stop_keeps_the_files_and_gives_the_memory_of_the_fd_store_back(machine: Machine) -> None:
    machine.run("systemctl", "stop", NODE_A, NODE_B)
    assert blocks(machine, "gone", ENDPOINT, "0", str(2 * NUM_BLOCKS)) == 0
    assert machine.show(MOUNT, "ActiveState") == "active"
    assert machine.show(NODE_B, "NFileDescriptorStore") == "0"
    machine.run("systemctl", "start", NODE_A, NODE_B)
    expect_blocks(machine, NODE_A)
    put_blocks(machine, NODE_B)
    expect_blocks(machine, NODE_B)
    expect_chat(machine)


def test_killed_daemons_are_back_and_the_cache_is_what_it_was(machine: Machine) -> None:
    answer = expect_chat(machine)
    for together in ((MASTER,), (NODE_A, NODE_B), (PREFILL, DECODE, GATEWAY)):
        old = pids(machine, *together)
        machine.run("systemctl", "kill", "--signal", "KILL", *together)
        wait_until_new(machine, old)
        expect_blocks(machine, NODE_A, NODE_B)
        assert expect_chat(machine) == answer


def test_frozen_daemons_are_killed_by_the_watchdog(machine: Machine) -> None:
    old = pids(machine, *UNITS)
    machine.run("systemctl", "kill", "--signal", "STOP", *UNITS)
    wait_until_new(machine, old)
    for unit in UNITS:
        assert "Watchdog timeout" in machine.journal(unit)
    expect_blocks(machine, NODE_A, NODE_B)
    expect_chat(machine)


def test_reload_takes_over_what_is_documented_and_names_the_rest(machine: Machine) -> None:
    old = pids(machine, *UNITS)
    assert expect_chat(machine) == expect_chat(machine)
    assert len(requests(machine)) > 1
    for unit in UNITS:
        log = '[log]\nlevel = "warning"\n' + "[conductor]\nrequest_log = 1\n" * (unit == MASTER)
        machine.write(config_file(unit), CONFIGS[unit].replace('id = "', 'id = "other-') + log)
    machine.run("systemctl", "reload", *UNITS)
    for unit in UNITS:
        expect_line(machine, unit, "config needs a restart keys=node.id")
        assert "config reloaded" not in machine.journal(unit), "that is less than a warning"
    expect_chat(machine)
    assert len(requests(machine)) == 1
    write_configs(machine)
    machine.run("systemctl", "reload", *UNITS)
    for unit in UNITS:
        expect_line(machine, unit, "config reloaded")
    assert pids(machine, *UNITS) == old


def test_wrong_config_is_refused_and_a_start_with_it_is_not_tried_again(machine: Machine) -> None:
    machine.write(config_file(NODE_A), "[nodes]\n")
    machine.run("systemctl", "reload", NODE_A)
    expect_line(machine, NODE_A, "reload refused")
    assert machine.show(NODE_A, "ActiveState") == "active"
    machine.run("systemctl", "stop", NODE_A)
    machine.run("systemctl", "reset-failed", fails=True)
    assert machine.run("systemctl", "start", NODE_A, fails=True).returncode != 0
    assert machine.show(NODE_A, "ExecMainStatus") == "78"
    assert machine.show(NODE_A, "ActiveState") == "failed"
    assert machine.show(NODE_A, "NRestarts") == "0"
    write_configs(machine)
    machine.run("systemctl", "start", NODE_A)
    expect_blocks(machine, NODE_A)


def test_stop_of_the_target_answers_what_was_accepted(machine: Machine, tmp_path: Path) -> None:
    streams = Streams(machine, tmp_path, NUM_STREAMS)
    machine.run("systemctl", "stop", "mooncake.target", *UNITS)
    streams.expect_all()
    for unit in UNITS:
        assert machine.show(unit, "ActiveState") == "inactive"
        assert machine.show(unit, "Result") == "success", "ended by itself, within TimeoutStopSec"
    assert re.search(r"segment kept .* blocks=[1-9]", machine.journal(NODE_A))


def expect_line(machine: Machine, unit: str, words: str) -> None:
    wait_for(lambda: words in machine.journal(unit), WAIT_S, f"{unit} to say: {words}")


def requests(machine: Machine) -> list[object]:
    listed = machine.run("mcctl", "request", "list", "--output", "json").stdout
    return list(json.loads(listed)["requests"])
