"""Addresses that other hosts reach: refused without keys, by the daemon and by mcctl config check alike."""

import subprocess
import sys
from pathlib import Path

import pytest

from daemons.config.base import Section, load_config
from daemons.config.exposure import exposed, refuse_exposed
from daemons.config.mc_cachenode import CachenodeConfig
from daemons.config.mc_decode import DecodeConfig
from daemons.config.mc_gateway import GatewayConfig
from daemons.config.mc_master import MasterConfig
from daemons.config.mc_prefill import PrefillConfig
from daemons.core.errors import ConfigError
from daemons.protocol.address import is_wildcard
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


@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1",
        "0.0.0.0",
        "::",
        "::0",
        "::ffff:10.0.0.1",
        "fe80::1%eth0",
        "eth0",
        "cache-1",
        "127.0.0.1.evil.com",
    ],
)
def test_whatever_is_not_of_this_host_alone_needs_keys_at_each_daemon(host: str) -> None:
    at = f"tcp://[{host}]:7" if ":" in host else f"tcp://{host}:7"
    model = "model.path=/m"
    starts: list[tuple[type[Section], list[str], str]] = [
        (MasterConfig, [f"node.listen={at}"], "node.listen"),
        (MasterConfig, [f"node.events={at}"], "node.events"),
        (GatewayConfig, [f"http.host={host}", "models.m=/m"], "http.host"),
    ]
    if not is_wildcard(host):  # refused as such
        for daemon in (CachenodeConfig, PrefillConfig, DecodeConfig):
            with_model = [] if daemon is CachenodeConfig else [model]
            starts += [
                (daemon, [f"node.listen={at}", *with_model], "node.listen"),
                (daemon, [f"transfer.host={host}", *with_model], "transfer.host"),
                (daemon, [f'transfer.more_hosts=["{host}"]', *with_model], "transfer.host"),
            ]
    for config_type, values, key in starts:
        with pytest.raises(ConfigError, match=rf"`{key}`: other hosts reach .*--insecure"):
            refuse_exposed(load_config(None, config_type, values))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "::ffff:127.0.0.1"])
def test_loopback_needs_none_in_any_spelling(host: str) -> None:
    at = f"tcp://[{host}]:7" if ":" in host else f"tcp://{host}:7"
    refuse_exposed(load_config(None, MasterConfig, [f"node.listen={at}", f"node.events={at}"]))
    refuse_exposed(load_config(None, GatewayConfig, [f"http.host={host}", "models.m=/m"]))


def test_a_gateway_that_others_reach_needs_tenants() -> None:
    values = ["http.host=0.0.0.0", "models.m=/m"]
    with pytest.raises(ConfigError, match=r"`http\.host`.*mcctl tenant"):
        refuse_exposed(load_config(None, GatewayConfig, values))
    refuse_exposed(load_config(None, GatewayConfig, [*values, "tenants.file=/t.toml"]))


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
