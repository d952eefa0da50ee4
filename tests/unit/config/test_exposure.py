"""Addresses that other hosts reach: refused without keys, by the daemon and by mcctl config check alike."""

import subprocess
import sys
from pathlib import Path

import pytest

from daemons.config.base import load_config
from daemons.config.exposure import exposed, refuse_exposed
from daemons.config.mc_cachenode import CachenodeConfig
from daemons.config.mc_master import MasterConfig
from daemons.core.errors import ConfigError
from mcctl.main import main

KEYS = ["security.key_file=/k", f"security.master_key={'ab' * 32}"]


def test_defaults_are_on_loopback_and_fine() -> None:
    for config_type in (MasterConfig, CachenodeConfig):
        refuse_exposed(load_config(None, config_type))


@pytest.mark.parametrize("key", ["node.listen", "node.events"])
def test_a_master_that_others_reach_needs_keys(key: str) -> None:
    config = load_config(None, MasterConfig, [f"{key}=tcp://10.0.0.1:7700"])
    with pytest.raises(ConfigError, match=rf"`{key}`.*mcctl keys generate.*--insecure"):
        refuse_exposed(config)


def test_a_secret_guards_a_nodes_data_and_keys_guard_all_of_it() -> None:
    values = ["node.listen=tcp://10.0.0.2:7710", "transfer.host=10.0.0.2"]
    names = [found.key for found in exposed(load_config(None, CachenodeConfig, values))]
    assert names == ["node.listen", "transfer.host"]
    guarded = [*values, "transfer.secret_file=/s"]
    names = [found.key for found in exposed(load_config(None, CachenodeConfig, guarded))]
    assert names == ["node.listen"]
    refuse_exposed(load_config(None, CachenodeConfig, [*values, *KEYS]))


def test_a_key_without_a_master_key_is_half_a_config() -> None:
    with pytest.raises(ConfigError, match="master_key"):
        load_config(None, CachenodeConfig, ["security.key_file=/k"])
    with pytest.raises(ConfigError, match="authorized_file"):
        load_config(None, MasterConfig, ["security.key_file=/k"])


def test_config_check_says_what_the_daemon_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mc-master.toml"
    path.write_text('[node]\nlisten = "tcp://10.0.0.1:7700"\n')
    assert main(["config", "check", str(path)]) == 78
    assert str(path) in capsys.readouterr().err
    assert main(["config", "check", "--insecure", str(path)]) == 0


@pytest.mark.parametrize("more", [[], ["--check"]])
def test_a_daemon_ends_with_78_and_one_line(more: list[str]) -> None:
    words = [sys.executable, "-m", "daemons.mc_master", "--set", "node.listen=tcp://192.0.2.1:7700"]
    done = subprocess.run([*words, *more], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 78
    assert len(done.stderr.splitlines()) == 1
    assert "--insecure" in done.stderr
