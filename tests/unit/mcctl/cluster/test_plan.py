"""The plan of a local cluster: every config is one its daemon accepts, no port is given twice."""

from pathlib import Path

import pytest
import tomli

from daemons.config.base import load_config
from daemons.core.errors import ConfigError
from mcctl.cluster.plan import (
    CONFIG_TYPES,
    ClusterOptions,
    plan_cluster,
    to_toml,
)

SCRATCH = (Path("/tmp/s"), Path("/dev/shm/x"))


def test_every_config_is_accepted_by_its_daemon(tmp_path: Path) -> None:
    options = ClusterOptions(
        model=Path("/models/A B"), num_prefill=2, num_decode=3, num_cachenodes=2
    )
    plan = plan_cluster(options, tmp_path, SCRATCH)
    assert [daemon.name for daemon in plan.daemons] == [
        "mc-master",
        "mc-cachenode",
        "mc-cachenode-2",
        "mc-prefill",
        "mc-prefill-2",
        "mc-decode",
        "mc-decode-2",
        "mc-decode-3",
        "mc-gateway",
    ]
    for daemon in plan.daemons:
        path = tmp_path / f"{daemon.name}.toml"
        path.write_text(to_toml(daemon.tables))
        load_config(path, CONFIG_TYPES[daemon.role])


def test_with_replicas_each_cache_node_is_a_domain_of_its_own(tmp_path: Path) -> None:
    options = ClusterOptions(model=Path("/m"), num_cachenodes=3, replicas=2)
    plan = plan_cluster(options, tmp_path, SCRATCH)
    nodes = [daemon.tables["node"] for daemon in plan.daemons if daemon.role == "cachenode"]
    assert len({node["domain"] for node in nodes}) == 3
    assert plan.daemons[0].tables["pool"] == {"replicas": 2}


def test_no_port_is_given_twice(tmp_path: Path) -> None:
    options = ClusterOptions(model=Path("/m"), num_prefill=4, num_decode=4, num_cachenodes=4)
    plan = plan_cluster(options, tmp_path, SCRATCH)
    ports = [
        str(daemon.tables[section][key]).rpartition(":")[2]
        for daemon in plan.daemons
        for section, key in (
            ("node", "listen"),
            ("node", "events"),
            ("node", "metrics"),
            ("http", "port"),
        )
        if key in daemon.tables.get(section, {})
    ]
    assert len(ports) == len(set(ports))


def test_segments_that_are_kept_lie_where_they_were_told_to(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    options = ClusterOptions(model=Path("/m"), segment_directory=kept)
    plan = plan_cluster(options, tmp_path, SCRATCH)
    tables = next(daemon.tables for daemon in plan.daemons if daemon.role == "cachenode")
    assert tables["segment"]["directory"] == str(kept)


def test_override_is_laid_over_one_role(tmp_path: Path) -> None:
    options = ClusterOptions(model=Path("/m"), overrides={"prefill": {"prefill": {"hold_s": 1.5}}})
    plan = plan_cluster(options, tmp_path, SCRATCH)
    tables = {daemon.role: daemon.tables for daemon in plan.daemons}
    assert tables["prefill"]["prefill"] == {"hold_s": 1.5}
    assert "prefill" not in tables["decode"]


def test_override_that_the_daemon_would_refuse_is_refused_here(tmp_path: Path) -> None:
    options = ClusterOptions(model=Path("/m"), overrides={"decode": {"decode": {"nonsense": 1}}})
    with pytest.raises(ConfigError, match="nonsense"):
        plan_cluster(options, tmp_path, SCRATCH)


def test_toml_survives_awkward_values() -> None:
    tables = {"models": {"a.b/c": '/x "y"\\z'}, "t": {"list": ["shm"], "yes": True, "f": 1.5}}
    assert tomli.loads(to_toml(tables)) == tables  # type: ignore[arg-type]


def test_an_object_tier_is_of_every_cache_node(tmp_path: Path) -> None:
    options = ClusterOptions(
        model=Path("/m"),
        num_cachenodes=2,
        object_bucket="kv",
        object_endpoint="http://127.0.0.1:9000",
        object_credentials=Path("/keys/s3"),
    )
    plan = plan_cluster(options, tmp_path, SCRATCH)
    wanted = {
        "bucket": "kv",
        "endpoint": "http://127.0.0.1:9000",
        "credentials_file": "/keys/s3",
    }
    assert [d.tables.get("object") for d in plan.daemons if d.role == "cachenode"] == [wanted] * 2
