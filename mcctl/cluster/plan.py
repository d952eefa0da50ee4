"""What a local cluster consists of: which daemons, on which ports, with which TOML. Pure but for the ports."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from daemons.config.base import Section
from daemons.config.mc_cachenode import CachenodeConfig, SsdSection
from daemons.config.mc_decode import DecodeConfig
from daemons.config.mc_gateway import GatewayConfig
from daemons.config.mc_master import MasterConfig
from daemons.config.mc_prefill import PrefillConfig
from daemons.core.errors import ConfigError
from daemons.core.units import MIB, parse_size
from mcctl.cluster.ports import ReservedPorts
from mcctl.cluster.record import Role

Value = str | int | float | bool | list[str]
Tables = dict[str, dict[str, Value]]

CONFIG_TYPES: Final[dict[Role, type[Section]]] = {
    "master": MasterConfig,
    "cachenode": CachenodeConfig,
    "prefill": PrefillConfig,
    "decode": DecodeConfig,
    "gateway": GatewayConfig,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How large. `overrides` lays tables over a role's config, e.g. {"prefill": {"prefill": {"hold_s": 1.0}}}."""

    model: Path
    num_prefill: int = 1
    num_decode: int = 1
    num_cachenodes: int = 1
    replicas: int = 1
    """Of each block; with more than one each cache node passes for a host of its own."""
    dtype: str = "auto"
    """bfloat16, float32, or auto: what is fast on this machine."""
    kv_memory: str = "1GiB"
    segment: str = "1GiB"
    segment_directory: Path | None = None
    """On a tmpfs: segments stay there when the cluster ends, and the next one has their blocks."""
    ssd_directory: Path | None = None
    """A tier below DRAM there, which stays like the segments' files; None: none."""
    object_bucket: str = ""
    """A tier below that, in this bucket, which stays too; empty: none."""
    object_endpoint: str = ""
    object_credentials: Path | None = None
    ssd_capacity: str = "8GiB"
    http_port: int | None = None
    paced: str | None = None
    """A hardware profile: instances take its times instead of computing. None: they compute."""
    ttft_slo_s: float = 0.0
    tbt_slo_s: float = 0.0
    """Who is predicted to miss an objective is rejected; 0: nobody for this one."""
    tenants: Path | None = None
    """Who may use the API of the gateway; None: everybody."""
    overrides: Mapping[Role, Tables] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedDaemon:
    """A process to start. `name` is mc-ROLE, with a number from the second one on."""

    name: str
    role: Role
    node_id: str
    tables: Tables


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Daemons in start order, and where to reach them; their ports are theirs as long as the plan is there."""

    master: str
    events: str
    url: str
    daemons: tuple[PlannedDaemon, ...]
    scratch: tuple[Path, ...]
    ports: ReservedPorts = field(compare=False, repr=False)


def plan_cluster(
    options: ClusterOptions, directory: Path, scratch: tuple[Path, Path]
) -> ClusterPlan:
    """`scratch` is (a directory for sockets, one on a tmpfs for segments). Raises ConfigError for what cannot work."""
    ports = ReservedPorts()
    master, events = (f"tcp://127.0.0.1:{ports.take()}" for _ in range(2))
    http_port = options.http_port if options.http_port is not None else ports.take()
    model_name = options.model.name
    daemons: list[PlannedDaemon] = []

    def add(role: Role, count: int) -> None:
        for number in range(1, count + 1):
            node_id = role if number == 1 else f"{role}-{number}"
            tables: Tables = {"node": {"id": node_id}, "log": {"level": "info"}}
            if role != "gateway":
                tables["node"] |= {"metrics": f"127.0.0.1:{ports.take()}"}
            if role == "master":
                tables["node"] |= {"listen": master, "events": events}
                tables["node"]["state_dir"] = str(directory / "state")
                tables |= _policy_tables(options)
            else:
                tables["master"] = {"endpoint": master}
            if role in ("cachenode", "prefill", "decode"):
                tables["node"]["listen"] = f"tcp://127.0.0.1:{ports.take()}"
                tables["node"]["state_dir"] = str(directory / "state" / node_id)
                tables["transfer"] = {"unix_dir": str(scratch[0] / node_id)}
            if role == "cachenode":
                tables["node"] |= {"domain": node_id} if options.replicas > 1 else {}
                tables |= _memory_tables(options, scratch[1] / node_id)
            elif role in ("prefill", "decode"):
                tables |= _instance_tables(options)
            elif role == "gateway":
                tables["models"] = {model_name: str(options.model)}
                tables["http"] = {"port": http_port}
                tables |= {"tenants": {"file": str(options.tenants)}} if options.tenants else {}
            for section, values in options.overrides.get(role, {}).items():
                tables.setdefault(section, {}).update(values)
            _check(role, tables)
            daemons.append(PlannedDaemon(f"mc-{node_id}", role, node_id, tables))

    add("master", 1)
    add("cachenode", options.num_cachenodes)
    add("prefill", options.num_prefill)
    add("decode", options.num_decode)
    add("gateway", 1)
    url = f"http://127.0.0.1:{http_port}"
    return ClusterPlan(master, events, url, tuple(daemons), scratch, ports)


def _policy_tables(options: ClusterOptions) -> Tables:
    """Of the master: how many replicas, and which objectives."""
    return {
        "pool": {"replicas": options.replicas},
        "conductor": {"ttft_slo_s": options.ttft_slo_s, "tbt_slo_s": options.tbt_slo_s},
    }


def _instance_tables(options: ClusterOptions) -> Tables:
    engine: dict[str, Value] = {"dtype": options.dtype, "kv_memory": options.kv_memory}
    if options.paced is not None:
        engine |= {"kind": "paced", "profile": options.paced}
    return {
        "model": {"path": str(options.model), "name": options.model.name},
        "engine": engine,
    }


def _memory_tables(options: ClusterOptions, scratch: Path) -> Tables:
    """Of a cache node: its segment and, where one is wanted, its SSD."""
    segments = str(options.segment_directory or scratch)
    tables: Tables = {"segment": {"size": options.segment, "directory": segments}}
    if options.ssd_directory is not None:
        # Buckets are as large as usual where at least eight of them fit.
        usual, num_bytes = parse_size(SsdSection().bucket), parse_size(options.ssd_capacity)
        tables["ssd"] = {
            "directory": str(options.ssd_directory),
            "capacity": options.ssd_capacity,
            "bucket": min(usual, num_bytes // 8 // MIB * MIB or MIB),
        }
    if options.object_bucket:
        credentials = options.object_credentials
        tables["object"] = {
            "bucket": options.object_bucket,
            "endpoint": options.object_endpoint,
            "credentials_file": "" if credentials is None else str(credentials),
        }
    return tables


def shared_bytes(options: ClusterOptions) -> int:
    """KV arenas and segments together: shared memory that is allocated whole at start."""
    arenas = parse_size(options.kv_memory) * (options.num_prefill + options.num_decode)
    return arenas + parse_size(options.segment) * options.num_cachenodes


def to_toml(tables: Tables) -> str:
    """JSON's strings, numbers, booleans and lists of strings are TOML's too."""
    lines = []
    for section, values in tables.items():
        lines.append(f"[{section}]")
        lines += [f"{_key(key)} = {json.dumps(value)}" for key, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _check(role: Role, tables: Tables) -> None:
    try:
        msgspec.convert(tables, CONFIG_TYPES[role])
    except msgspec.ValidationError as error:
        raise ConfigError(f"mc-{role} would not accept its config: {error}") from None
