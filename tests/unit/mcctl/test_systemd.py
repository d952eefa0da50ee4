"""mcctl service and logs over systemctl and journalctl, whose answers are those of a real systemd 252."""

import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemons.core.errors import NotFound
from mcctl import systemd
from mcctl.main import main

SHOWN = """Id=mc-cachenode@0.service
LoadState=loaded
ActiveState=active
SubState=running
StatusText=node=node-0 blocks=12 used=1.0 GiB of 2.0 GiB
MainPID=411
NRestarts=2
MemoryCurrent=52428800
UnitFileState=enabled
Result=success

Id=mc-master.service
LoadState=loaded
ActiveState=failed
SubState=failed
StatusText=
MainPID=0
NRestarts=0
MemoryCurrent=[not set]
UnitFileState=disabled
Result=watchdog

Id=mc-decode@gone.service
LoadState=not-found
ActiveState=inactive
SubState=dead
"""
SYSTEMCTL = f"""#!/bin/sh
echo "$*" >>"$CALLS"
case $1 in
list-units)
    echo 'mc-cachenode@0.service loaded active running Mooncake MC cache node 0'
    echo 'mc-master.service loaded failed failed Mooncake MC master' ;;
list-unit-files)
    echo 'mc-cachenode@.service disabled enabled'
    echo 'mc-decode@gone.service enabled enabled' ;;
show) cat <<'END'
{SHOWN}END
    ;;
start) echo "Failed to start $2: Access denied" >&2; exit 4 ;;
restart) echo "Failed to restart $2: Unit $2 not found." >&2; exit 5 ;;
esac
"""
JOURNALCTL = """#!/bin/sh
echo "journalctl $*" >>"$CALLS"
echo '{"MESSAGE":"node joined node=a","_SYSTEMD_UNIT":"mc-master.service","__REALTIME_TIMESTAMP":"1700000000000000"}'
echo '{"MESSAGE":[104,105,255],"_SYSTEMD_UNIT":"mc-cachenode@0.service","__REALTIME_TIMESTAMP":"1700000001500000"}'
echo 'no JSON'
echo '{"MESSAGE":"Started","UNIT":"mc-master.service","_SYSTEMD_UNIT":"init.scope","__REALTIME_TIMESTAMP":"1"}'
case $* in *--follow*) exec sleep 60 ;; esac
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755 | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return lambda: (tmp_path / "calls").read_text().splitlines()


Calls = Callable[[], list[str]]


def test_list_says_how_units_are_and_7_when_one_has_failed(
    calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["service", "list", "-o", "json"]) == 7
    units = json.loads(capsys.readouterr().out)["units"]
    assert [unit["name"] for unit in units] == ["mc-cachenode@0", "mc-master"]
    node, master = units
    assert (node["pid"], node["memory_bytes"], node["num_restarts"]) == (411, 50 << 20, 2)
    assert node["status"].startswith("node=node-0")
    assert node["is_enabled"]
    assert (master["pid"], master["memory_bytes"], master["result"]) == (None, None, "watchdog")
    assert main(["service", "list", "cachenode", "-o", "plain"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("mc-cachenode@0\tactive (running)\tyes\t411\t50.0 MiB\t2\t")
    assert calls()[0].startswith("list-units --all")


@pytest.mark.usefixtures("calls")
def test_names_are_found_as_people_write_them() -> None:
    known = systemd.units()
    for name in ("cachenode@0", "mc-cachenode@0", "mc-cachenode@0.service", "cachenode"):
        assert systemd.find_units([name], known) == ["mc-cachenode@0.service"]
    assert systemd.find_units(["decode@new"], known) == ["mc-decode@new.service"]
    with pytest.raises(NotFound, match="there are: mc-cachenode@0, mc-master"):
        systemd.find_units(["decode"], known)


def test_what_systemctl_refuses_is_one_line_of_its_family(
    calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["service", "start", "master"]) == 5
    assert "Access denied; run it as root" in capsys.readouterr().err
    assert main(["service", "restart", "prefill@x"]) == 3
    assert main(["service", "stop", "cachenode@0"]) == 0
    assert "stop mc-cachenode@0.service" in calls()
    assert main(["service", "stop"]) == 5
    assert "--yes" in capsys.readouterr().err
    assert main(["service", "stop", "--yes"]) == 7, "as one of them has failed"
    assert "stop mooncake.target" in calls()


def test_logs_are_those_of_the_journal(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "master", "-n", "3", "-o", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"daemon": "mc-master", "time_s": 1.7e9, "line": "node joined node=a"}
    assert lines[1]["line"] == "hi\ufffd"
    assert [line["daemon"] for line in lines] == ["mc-master", "mc-cachenode@0", "mc-master"]
    assert calls()[-1].endswith("--lines=3 --unit=mc-master.service")
    assert main(["logs", "-o", "plain"]) == 0
    assert capsys.readouterr().out.startswith("mc-master\t2023-11-1")
    assert calls()[-1].endswith("--unit=mc-*.service")


@pytest.mark.usefixtures("calls")
def test_follow_ends_in_time_and_leaves_no_process(capsys: pytest.CaptureFixture[str]) -> None:
    began_s = time.monotonic()
    assert main(["logs", "--follow", "--for", "0.5"]) == 0
    assert time.monotonic() - began_s < 20
    assert "node joined" in capsys.readouterr().out


def test_host_without_systemd_is_one_line_and_7(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for words in (["service", "list"], ["logs"]):
        assert main(words) == 7
        assert "mcctl cluster up" in capsys.readouterr().err
