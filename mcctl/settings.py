"""The global flags, and what they fall back to: mcctl.toml, then the cluster of `mcctl cluster up`, then loopback."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from daemons.config.base import Section, load_config
from daemons.config.common import Seconds
from daemons.config.forms import is_endpoint
from daemons.core.errors import ConfigError
from daemons.core.ids import PublicKey
from daemons.core.units import parse_whole
from daemons.protocol.address import is_public_key, split_key, with_key
from mcctl import paths
from mcctl.cluster.record import ClusterRecord, running_record

Output = Literal["table", "json", "plain"]

DEFAULT_ENDPOINT: Final = "tcp://127.0.0.1:7700"
DEFAULT_URL: Final = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT_S: Final = 5.0


class ToolConfig(Section, frozen=True, kw_only=True):
    """~/.config/mooncake/mcctl.toml, else /etc/mooncake/mcctl.toml: defaults of the global flags."""

    endpoint: Annotated[str, msgspec.Meta(extra={"form": "endpoint_or_empty"})] = ""
    """The master; empty for a local cluster's, else tcp://127.0.0.1:7700."""
    url: Annotated[str, msgspec.Meta(extra={"form": "url_or_empty"})] = ""
    """The gateway; empty for a local cluster's, else http://127.0.0.1:8000."""
    key_file: str = ""
    """Your own key, NAME.key of mcctl keys generate NAME --role admin, where `endpoint` is a master with keys."""
    master_key: Annotated[str, msgspec.Meta(extra={"form": "key_or_empty"})] = ""
    """That master's public key."""
    timeout_s: Seconds = DEFAULT_TIMEOUT_S
    output: Output = "table"


@dataclass(slots=True)
class Settings:
    """Flags as given; None where not. Verbs ask for the resolved values below."""

    config: Path | None = None
    endpoint: str | None = None
    timeout_s: float | None = None
    output_flag: Output | None = None
    key_file_flag: Path | None = None
    master_key_flag: str | None = None
    verbose: bool = False
    no_color: bool = False
    _file: ToolConfig | None = None

    @property
    def file(self) -> ToolConfig:
        if self._file is None:
            self._file = _load(self.config)
        return self._file

    @property
    def output(self) -> Output:
        return self.output_flag or self.file.output

    @property
    def wait_s(self) -> float:
        return self.timeout_s or self.file.timeout_s

    @property
    def master(self) -> str:
        """The master's endpoint, with its key where that is known. A local cluster has none."""
        named = self._named
        local = None if named else _local("master")
        return local or with_key(named or DEFAULT_ENDPOINT, self.master_key)

    @property
    def key_file(self) -> Path | None:
        """Whose key to show: the flag, $MCCTL_KEY_FILE, mcctl.toml."""
        given = os.environ.get("MCCTL_KEY_FILE", "") or self.file.key_file
        return self.key_file_flag or (Path(given).expanduser() if given else None)

    @property
    def api_key(self) -> str:
        """For a gateway that has tenants: $MCCTL_API_KEY."""
        return os.environ.get("MCCTL_API_KEY", "")

    @property
    def _named(self) -> str:
        """The flag, $MCCTL_ENDPOINT, mcctl.toml."""
        given = os.environ.get("MCCTL_ENDPOINT", "")
        if given and not is_endpoint(given):
            raise ConfigError(f"$MCCTL_ENDPOINT: {given!r} is no endpoint; write tcp://HOST:PORT")
        return self.endpoint or given or self.file.endpoint

    @property
    def master_key(self) -> PublicKey | None:
        given = self.master_key_flag or os.environ.get("MCCTL_MASTER_KEY", "")
        found = given or self.file.master_key
        if found and not is_public_key(found):
            raise ConfigError(f"$MCCTL_MASTER_KEY: {found!r} is no public key; write 64 hex digits")
        return PublicKey(found) if found else None

    @property
    def events(self) -> str:
        """Where the master publishes: the port after its own, unless a local cluster says otherwise."""
        local = None if self._named else _local("events")
        if local:
            return local
        address, key = split_key(self.master)
        host, _, port = address.rpartition(":")
        number = parse_whole(port)
        return self.master if number is None else with_key(f"{host}:{number + 1}", key)

    @property
    def local_cluster(self) -> ClusterRecord | None:
        """That of `mcctl cluster up`, where it runs and is the one that is meant."""
        record = running_record()
        return record if record is not None and record.master == self.master else None

    @property
    def url(self) -> str:
        """The gateway's base URL."""
        return self.file.url or _local("url") or DEFAULT_URL


def settings_of(context: Any) -> Settings:
    """The Settings of a typer context."""
    found = context.find_root().obj
    assert isinstance(found, Settings)
    return found


def _load(path: Path | None) -> ToolConfig:
    if path is None and not paths.config_file().exists():
        return ToolConfig()
    if path is not None and not path.exists():
        raise ConfigError(
            f"{path}: no such file; --config names defaults of mcctl's own flags, see mcctl(1)"
        )
    return load_config(path or paths.config_file(), ToolConfig)


def _local(field: Literal["master", "events", "url"]) -> str | None:
    record = running_record()
    if record is None:
        return None
    value: str = getattr(record, field)
    return value
