"""Config errors are one line: file, key, problem, what is known."""

import json
from pathlib import Path

import msgspec
import pytest

from daemons.config.base import Section, load_config
from daemons.config.common import size_bytes
from daemons.config.mc_cachenode import CachenodeConfig
from daemons.config.mc_decode import DecodeConfig
from daemons.config.mc_gateway import GatewayConfig
from daemons.config.mc_master import MasterConfig
from daemons.config.mc_prefill import PrefillConfig
from daemons.core.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.toml"
    path.write_text(text)
    return path


def message(path: Path | None, overrides: list[str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, MasterConfig, overrides)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_defaults_need_no_file() -> None:
    assert load_config(None, MasterConfig) == MasterConfig()
    assert load_config(None, CachenodeConfig).segment.size == "2GiB"


def test_file_and_overrides_are_laid_over_the_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, '[node]\nid = "m1"\n[pool]\nhigh_watermark = 0.8\nlow_watermark = 0.5\n')
    config = load_config(
        path, MasterConfig, ["pool.high_watermark=0.9", "node.metrics=", "conductor.policy=random"]
    )
    assert (config.node.id, config.node.metrics) == ("m1", "")
    assert (config.pool.high_watermark, config.conductor.policy) == (0.9, "random")
    assert config.membership.beat_interval_s == 0.5


def test_unknown_key_names_the_known_ones(tmp_path: Path) -> None:
    text = message(write(tmp_path, "[pool]\nhigh_water = 0.9\n"))
    assert "x.toml" in text
    assert "`pool.high_water`" in text
    assert "high_watermark, low_watermark, lease_s" in text


def test_unknown_section_names_the_known_ones(tmp_path: Path) -> None:
    text = message(write(tmp_path, "[pooll]\n"))
    assert "`pooll`" in text
    assert "node, membership, pool, access, conductor, security, log" in text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[pool]\nhigh_watermark = 2.0\n", "pool.high_watermark"),
        ('[pool]\nlease_s = "x"\n', "pool.lease_s"),
        ('[conductor]\npolicy = "fastest"\n', "conductor.policy"),
        ("[membership]\nbeat_interval_s = 0\n", "membership.beat_interval_s"),
        ("[pool]\nlow_watermark = 0.99\n", "`pool`: low_watermark (0.99) must be below"),
        ("[membership]\nsuspect_beats = 6\n", "`membership`: suspect_beats (6) must be below"),
        ("pool = 3\n", "pool"),
        ("[pool\n", "not valid TOML"),
    ],
)
def test_wrong_values_name_their_key(tmp_path: Path, text: str, part: str) -> None:
    assert part in message(write(tmp_path, text))


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("node.listen", "tcp://127.0.0.1:99999", "PORT at most 65535"),
        ("node.listen", "tcp://127.0.0.1", "write tcp://ADDRESS:PORT"),
        ("node.listen", "127.0.0.1:7700", "write tcp://ADDRESS:PORT"),
        ("node.listen", "", "write tcp://ADDRESS:PORT"),
        ("node.events", "udp://h:1", "write tcp://ADDRESS:PORT"),
        ("node.metrics", "9700", "write HOST:PORT"),
        ("node.metrics", "h:99999", "write HOST:PORT"),
        ("node.id", "a b", "letters, digits"),
        ("master.endpoint", "h:7700", "write tcp://HOST:PORT"),
        ("master.endpoint", "tcp://h:0", "PORT 1 to 65535"),
        ("master.endpoint", "tcp://*:7700", "write tcp://HOST:PORT"),
        ("transfer.host", "", "an address of this host"),
        ("transfer.host", "tcp://h", "an address of this host"),
        ("transfer.host", "0.0.0.0", "that peers reach"),
        ("transfer.host", "::", "that peers reach"),
        ("transfer.more_hosts", ["10.0.0.1", "0.0.0.0"], "that peers reach"),
        ("transfer.more_hosts", ["tcp://h"], "addresses of this host"),
        ("transfer.more_hosts", ["10.0.0.1", "10.0.0.1"], "each once"),
        ("transfer.port", 70000, "<= 65535"),
        ("transfer.transports", [], "one or more of shm, tcp, rdma"),
        ("transfer.transports", ["tcp", "tcp"], "each once"),
        ("transfer.transports", ["udp"], "write one of shm, tcp, rdma"),
        ("transfer.timeout_s", float("inf"), "at most a year"),
        ("segment.size", "many", "512MiB"),
        ("segment.size", 0, "more than 0 bytes"),
        ("segment.directory", " ", "the path of a directory"),
        ("http.port", -1, ">= 0"),
        ("http.host", "a b", "an address of this host"),
        ("http.max_body", "big", "512MiB"),
        ("request.max_retries", -1, ">= 0"),
        ("membership.beat_interval_s", float("inf"), "at most a year"),
        ("conductor.policy", "fastest", "write one of random, least-loaded"),
        ("conductor.balancing_threshold", -1.0, ">= 0"),
    ],
)
def test_value_of_a_wrong_form_is_said_with_its_key_and_what_is_allowed(
    key: str, value: object, allowed: str
) -> None:
    config_types = [c for c in (MasterConfig, CachenodeConfig, GatewayConfig) if has_key(c, key)]
    assert config_types, "nobody has this key"
    text = str(value) if isinstance(value, float) else json.dumps(value)
    for config_type in config_types:
        with pytest.raises(ConfigError) as caught:
            load_config(None, config_type, [f"{key}={text}"])
        said = caught.value.message
        assert f"`{key}" in said
        assert (text if value != ["udp"] else '"udp"') in said
        assert allowed in said


def has_key(config_type: type[Section], key: str) -> bool:
    section, name = key.split(".")
    sections = {field.name: field.type for field in msgspec.structs.fields(config_type)}
    return name in getattr(sections.get(section), "__struct_fields__", ())


@pytest.mark.parametrize(
    "override",
    [
        "node.listen=tcp://0.0.0.0:0",
        "node.listen=tcp://*:7700",
        "node.listen=tcp://[::]:7700",
        "node.listen=ipc:///run/x",
        "node.metrics=",
        "node.metrics=[::1]:9700",
        "node.events=tcp://eth0:7701",
    ],
)
def test_good_forms_are_accepted(override: str) -> None:
    load_config(None, MasterConfig, [override])


@pytest.mark.parametrize("override", ["engine.device=tpu", "model.path=", "engine.kv_memory=0"])
def test_wrong_engine_values_are_said_before_a_model_is_loaded(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, PrefillConfig, ["model.path=x", override])
    assert f"`{override.partition('=')[0]}`" in caught.value.message


def test_a_file_without_an_end_is_said_and_not_read_for_ever() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: longer than"):
        load_config(Path("/dev/zero"), MasterConfig)


@pytest.mark.parametrize("host", ["*", "0", "0.0.0.0", "[::]", "[::0]", "[::ffff:0.0.0.0]"])
def test_an_address_that_peers_are_told_is_no_wildcard(host: str) -> None:
    with pytest.raises(ConfigError, match=r"node\.listen.*peers reach"):
        load_config(None, CachenodeConfig, [f"node.listen=tcp://{host}:7710"])


def test_no_number_of_threads_takes_a_host_down() -> None:
    with pytest.raises(ConfigError, match=r"copy\.workers.*256"):
        load_config(None, CachenodeConfig, ["copy.workers=1000000"])


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000])
def test_values_that_no_reader_takes_are_said(tmp_path: Path, value: str) -> None:
    assert "not valid TOML" in message(write(tmp_path, f"[pool]\nhigh_watermark = {value}\n"))
    assert "`pool.high_watermark`" in message(None, [f"pool.high_watermark={value}"])


def test_missing_and_unreadable_files_are_said(tmp_path: Path) -> None:
    assert "no such file" in message(tmp_path / "none.toml")
    assert "cannot be read" in message(tmp_path)
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"\xff\xfe")
    assert "cannot be read" in message(binary)


@pytest.mark.parametrize("override", ["pool", "=3", "pool.lease_s.more=1", "pool.nothing=1"])
def test_bad_overrides_are_said(override: str) -> None:
    overrides = ["pool.lease_s=2", override]
    assert message(None, overrides)


@pytest.mark.parametrize(
    "kind", [MasterConfig, CachenodeConfig, PrefillConfig, DecodeConfig, GatewayConfig]
)
def test_every_process_has_a_node_and_a_log_section(kind: type[Section], tmp_path: Path) -> None:
    needed = {GatewayConfig: "models.m", PrefillConfig: "model.path", DecodeConfig: "model.path"}
    overrides = [f"{needed[kind]}={tmp_path}"] if kind in needed else []
    config = load_config(None, kind, overrides)
    assert config.node.id  # type: ignore[attr-defined]
    assert config.log.level == "info"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        config.node = None  # type: ignore[attr-defined]


def test_sizes_name_their_key() -> None:
    assert size_bytes("1GiB", "segment.size") == 1 << 30
    for bad in ("many", 0, -5):
        with pytest.raises(ConfigError, match=r"segment\.size"):
            size_bytes(bad, "segment.size")


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "a\\nb", "-x", "x" * 129])
def test_a_node_id_fits_file_names_and_log_lines(tmp_path: Path, name: str) -> None:
    """The master refuses an empty one, and a cache node names its segment's file by it."""
    assert "`node.id`" in message(write(tmp_path, f'[node]\nid = "{name}"\n'))
    assert load_config(write(tmp_path, '[node]\nid = "host-1.rack_2"\n'), MasterConfig)
