"""Which master a client means that names none."""

import json
import os
from pathlib import Path

import pytest

from daemons.client.default_master import DEFAULT_MASTER, default_key_file, default_master
from daemons.core.errors import ConfigError

KEY = "ab" * 32


@pytest.fixture(autouse=True)
def _nothing_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("MCCTL_ENDPOINT", "MCCTL_MASTER_KEY", "MCCTL_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


def leave_record(home: Path, text: str) -> None:
    path = home / "mooncake" / "cluster" / "cluster.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def record(pid: int) -> str:
    process = {"pid": pid, "start_ticks": 1, "boot_id": "b"}
    daemons = [
        {"role": "gateway", "process": None},
        {"role": "master", "process": process, "name": "mc-master"},
    ]
    return json.dumps({"master": "tcp://127.0.0.1:21000", "daemons": daemons, "url": "u"})


def test_the_environment_names_it_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCCTL_ENDPOINT", "tcp://10.0.0.1:7700")
    assert default_master() == "tcp://10.0.0.1:7700"
    monkeypatch.setenv("MCCTL_MASTER_KEY", KEY)
    assert default_master() == f"tcp://10.0.0.1:7700#{KEY}"
    monkeypatch.setenv("MCCTL_MASTER_KEY", "nonsense")
    with pytest.raises(ConfigError, match="MCCTL_MASTER_KEY: 'nonsense' is no public key"):
        default_master()


def test_a_running_cluster_of_this_user_is_found_and_one_that_ended_is_not(tmp_path: Path) -> None:
    assert default_master() == DEFAULT_MASTER
    leave_record(tmp_path, record(os.getpid()))
    assert default_master() == "tcp://127.0.0.1:21000"


@pytest.mark.parametrize("text", [record(1 << 30), "{", "[]", '{"master": 3, "daemons": []}'])
def test_a_record_that_says_nothing_now_is_passed_over(tmp_path: Path, text: str) -> None:
    leave_record(tmp_path, text)
    assert default_master() == DEFAULT_MASTER


def test_the_environment_names_the_key_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_key_file() is None
    monkeypatch.setenv("MCCTL_KEY_FILE", "/keys/ops.key")
    assert default_key_file() == Path("/keys/ops.key")
