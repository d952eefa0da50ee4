"""Where a daemon keeps its files: what systemd gives it, else the user's own directories."""

import os
import tempfile
from pathlib import Path

from daemons.core.errors import ConfigError


def runtime_dir(configured: str = "") -> Path:
    """For sockets: the config's choice, $RUNTIME_DIRECTORY, or a private directory per user."""
    chosen = configured or os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"mooncake-{os.getuid()}"


def state_path(configured: str, node: str) -> Path:
    """The config's choice, $STATE_DIRECTORY, or the user's own."""
    chosen = configured or os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Path(chosen) if chosen else Path.home() / ".local/state/mooncake" / node


def state_directory(configured: str, node: str) -> Path:
    """`state_path`, created."""
    path = state_path(configured, node)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"`node.state_dir`: cannot make {path}: {error.strerror}; choose another directory"
        ) from None
    return path


def write_durably(path: Path, data: bytes) -> None:
    """A crash leaves the old bytes or these. Raises OSError."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
