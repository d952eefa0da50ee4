"""What the config files of one host demand of it, checked together: each alone is the business of `config check`."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from daemons.config.base import Section, load_config
from daemons.config.common import size_bytes
from daemons.config.exposure import exposed
from daemons.config.mc_cachenode import CachenodeConfig
from daemons.config.secret import read_secret
from daemons.core.errors import ConfigError, McError
from daemons.core.units import format_size
from mcctl.config_text import PROCESSES, process_of
from mcctl.doctor.finding import Finding
from mcctl.doctor.host import Host
from mcctl.doctor.keys import CREDENTIALS, check_keys
from mcctl.doctor.loaded import Loaded
from mcctl.doctor.ports import Wanted, check_ports, parse
from mcctl.doctor.segments import check_segments
from mcctl.systemd import PRESERVES_FDS

_MOST_OF_MEMORY: Final = 0.9
_MODEL_FILES: Final = ("config.json", "tokenizer.json")
_LISTEN_KEYS: Final = ("listen", "events", "metrics")


def load_all(paths: Sequence[Path]) -> tuple[list[Loaded], list[Finding]]:
    """The good ones, and what is wrong with the others."""
    loaded, findings = [], []
    for path in paths:
        try:
            process = process_of(path)
            loaded.append(Loaded(path, process, load_config(path, PROCESSES[process])))
        except McError as error:
            findings.append(
                Finding(
                    severity="error",
                    area="config",
                    what=str(path),
                    problem=error.message,
                    fix="mend it; mcctl config show PROCESS lists every key",
                )
            )
    return loaded, findings


def check_configs(loaded: Sequence[Loaded], host: Host) -> Iterator[Finding]:
    """Memory, directories, ports, secrets, models and identities."""
    yield from _check_memory(loaded, host)
    yield from check_segments(loaded, host)
    for item in loaded:
        yield from _check_fd_store(item, host)
        yield from _check_models(item)
        yield from _check_secret(item)
        yield from _check_exposure(item)
        yield from check_keys(item.path, item.process, item.config)
    yield from check_ports(want for item in loaded for want in _wanted(item))
    yield from _check_ids(loaded)


def _check_memory(loaded: Sequence[Loaded], host: Host) -> Iterator[Finding]:
    demands = {item.path.name: _memory_of(item) for item in loaded if _memory_of(item)}
    total = sum(demands.values())
    if host.memory_bytes and total > _MOST_OF_MEMORY * host.memory_bytes:
        parts = ", ".join(f"{name} {format_size(size)}" for name, size in demands.items())
        yield Finding(
            severity="error",
            area="memory",
            what=format_size(total),
            problem=f"the configs take {format_size(total)} of {format_size(host.memory_bytes)}: {parts}",
            fix="lower `segment.size` or `engine.kv_memory` so that a tenth is left for everything else",
        )


def _memory_of(item: Loaded) -> int:
    if isinstance(item.config, CachenodeConfig):
        return size_bytes(item.config.segment.size, "segment.size")
    engine = getattr(item.config, "engine", None)
    if engine is None or engine.device != "cpu":
        return 0
    return size_bytes(engine.kv_memory, "engine.kv_memory")


def _check_fd_store(item: Loaded, host: Host) -> Iterator[Finding]:
    """Memory without a file: what its owner does not expect is that a stop empties it."""
    if not isinstance(item.config, CachenodeConfig) or item.config.segment.directory:
        return
    what = f"`segment.directory` of {item.path} is empty"
    tmpfs = 'segment.directory = "/var/lib/mooncake/segments", which keeps blocks over a stop too'
    version = host.systemd_version
    if version is None:
        problem, fix = "without systemd nobody keeps its blocks when the process ends", tmpfs
    elif version < PRESERVES_FDS:
        problem = (
            f"systemd {version} keeps its blocks over a crash and a restart, not over stop and start; "
            f"{PRESERVES_FDS} is the first that can"
        )
        fix = tmpfs
    else:
        problem = "its blocks are kept over a crash and a restart, over stop and start only if the unit says so"
        fix = f"systemctl edit the unit: [Service], FileDescriptorStorePreserve=yes; or {tmpfs}"
    yield Finding(
        severity="info" if version is not None else "warning",
        area="memory",
        what="fd store",
        problem=f"{what}: {problem}",
        fix=fix,
    )


def _check_models(item: Loaded) -> Iterator[Finding]:
    model = getattr(item.config, "model", None)
    paths = [model.path] if model is not None else list(getattr(item.config, "models", {}).values())
    for path in map(Path, paths):
        needed = _MODEL_FILES if model is not None else ("tokenizer.json",)
        missing = [name for name in needed if not (path / name).is_file()]
        if missing:
            yield Finding(
                severity="error",
                area="model",
                what=str(path),
                problem=f"{item.path}: no {' and no '.join(missing)} in it",
                fix="name a Hugging Face directory, or make one: mcctl model fetch, mcctl model convert",
            )


def _check_secret(item: Loaded) -> Iterator[Finding]:
    for section, key in (("transfer", "secret_file"), ("access", "secret_file")):
        named = getattr(getattr(item.config, section, None), key, "")
        path = str(CREDENTIALS / named) if named and "/" not in named else named
        try:
            read_secret(path, f"{section}.{key}")
        except ConfigError as error:
            if isinstance(error.__cause__, PermissionError):
                continue  # the daemon's user may read it, we may not
            yield Finding(
                severity="error",
                area="secrets",
                what=path,
                problem=f"{item.path}: {error.message}",
                fix=f"openssl rand -hex 32 > {path}; chmod 640 {path}; the same file on every host",
            )


def _check_exposure(item: Loaded) -> Iterator[Finding]:
    for found in exposed(item.config):
        yield Finding(
            severity="warning",
            area="secrets",
            what=found.address,
            problem=f"`{found.key}` of {item.path}: without --insecure it does not start there",
            fix=found.remedy,
        )


def _wanted(item: Loaded) -> Iterator[Wanted]:
    node: Section | None = getattr(item.config, "node", None)
    for key in _LISTEN_KEYS:
        parsed = parse(getattr(node, key, "") or "")
        if parsed is not None:
            yield Wanted(*parsed, item.process, f"node.{key}", str(item.path))
    http = getattr(item.config, "http", None)
    if http is not None and http.port:
        yield Wanted(http.host, http.port, item.process, "http.port", str(item.path))
    transfer = getattr(item.config, "transfer", None)
    if transfer is not None and transfer.port:
        for host in (transfer.host, *transfer.more_hosts):
            yield Wanted(host, transfer.port, item.process, "transfer.port", str(item.path))


def _check_ids(loaded: Sequence[Loaded]) -> Iterator[Finding]:
    seen: dict[str, Loaded] = {}
    for item in loaded:
        name = getattr(getattr(item.config, "node", None), "id", "")
        if name and name in seen:
            yield Finding(
                severity="error",
                area="config",
                what=name,
                problem=f"{item.path} and {seen[name].path} have the same `node.id`",
                fix=f"name them after their host and number, e.g. {os.uname().nodename}-0",
            )
        seen[name] = item
