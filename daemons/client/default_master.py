"""The master of a client that names none: $MCCTL_ENDPOINT, else that of `mcctl cluster up`, else the usual one here."""

import os
from pathlib import Path
from typing import Final

import msgspec

from daemons.core.errors import ConfigError
from daemons.core.ids import PublicKey
from daemons.protocol.address import is_public_key, with_key
from daemons.protocol.base import MALFORMED

DEFAULT_MASTER: Final = "tcp://127.0.0.1:7700"


class _Process(msgspec.Struct):
    pid: int


class _Daemon(msgspec.Struct):
    role: str
    process: _Process | None


class _Record(msgspec.Struct):
    """What is needed of what `mcctl cluster up` leaves behind."""

    master: str
    daemons: list[_Daemon]


def default_master() -> str:
    """With its key, where $MCCTL_MASTER_KEY says one. Raises ConfigError."""
    named = os.environ.get("MCCTL_ENDPOINT", "")
    if not named:
        return _local_master() or DEFAULT_MASTER
    key = os.environ.get("MCCTL_MASTER_KEY", "")
    if key and not is_public_key(key):
        raise ConfigError(f"$MCCTL_MASTER_KEY: {key!r} is no public key; write 64 hex digits")
    return with_key(named, PublicKey(key) if key else None)


def default_key_file() -> Path | None:
    """$MCCTL_KEY_FILE."""
    given = os.environ.get("MCCTL_KEY_FILE", "")
    return Path(given).expanduser() if given else None


def _local_master() -> str | None:
    """None where no such cluster runs."""
    base = os.environ.get("XDG_STATE_HOME", "")
    state = Path(base) if base.startswith("/") else Path.home() / ".local/state"
    path = state / "mooncake" / "cluster" / "cluster.json"
    try:
        record = msgspec.json.decode(path.read_bytes(), type=_Record)
    except (OSError, *MALFORMED):
        return None
    masters = [each.process for each in record.daemons if each.role == "master"]
    is_running = any(each is not None and Path(f"/proc/{each.pid}").exists() for each in masters)
    return record.master if is_running else None
