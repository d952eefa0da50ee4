"""Where mcctl keeps files, by the XDG base directory rules. Nothing here creates anything but `runtime_dir`."""

import os
import tempfile
from pathlib import Path
from typing import Final

from daemons.core.errors import ConfigError

HOST_CONFIG: Final = Path("/etc/mooncake/mcctl.toml")
_SOCKET_ROOM: Final = 60
"""A UNIX socket's path may have 107 bytes; this much of it may be the runtime directory."""


def cache_dir() -> Path:
    """Converted models: large, and can be made again."""
    return _base("XDG_CACHE_HOME", ".cache") / "mooncake"


def models_dir() -> Path:
    return cache_dir() / "models"


def state_dir() -> Path:
    """The cluster that `mcctl cluster up` started."""
    return _base("XDG_STATE_HOME", ".local/state") / "mooncake"


def config_file() -> Path:
    """Defaults of mcctl's own flags: the user's, or where there is none the host's, for whom it is readable."""
    own = _base("XDG_CONFIG_HOME", ".config") / "mooncake" / "mcctl.toml"
    return HOST_CONFIG if not own.exists() and os.access(HOST_CONFIG, os.R_OK) else own


def runtime_dir() -> Path:
    """Sockets and clusters that end with their command; private to this user."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given and Path(given).is_dir() and len(given) < _SOCKET_ROOM:
        path = Path(given) / "mooncake"
    else:
        path = Path(tempfile.gettempdir()) / f"mooncake-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"{path} is not private to this user; remove it or set XDG_RUNTIME_DIR to a directory of yours"
        )
    return path


def _base(variable: str, default: str) -> Path:
    given = os.environ.get(variable, "")
    return Path(given) if given.startswith("/") else Path.home() / default
