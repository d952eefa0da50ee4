"""The counter of this master's lives, the only thing it keeps on disk here: each start is one more than any seen."""

import os
from pathlib import Path

from daemons.core.errors import ConfigError
from daemons.core.ids import Incarnation

_FILE = "incarnation"
MAX_INCARNATION = 1 << 62
"""A master that met one steps down and comes back above it, which must still fit the wire."""


def state_directory(configured: str, node: str) -> Path:
    """The config's choice, $STATE_DIRECTORY, or the user's own; created."""
    chosen = configured or os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    path = Path(chosen) if chosen else Path.home() / ".local/state/mooncake" / node
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"`node.state_dir`: cannot make {path}: {error.strerror}; choose another directory"
        ) from None
    return path


def next_incarnation(directory: Path) -> Incarnation:
    """Take the next one; on disk before it is returned. Raises ConfigError when it cannot be read or kept."""
    path = directory / _FILE
    try:
        stored = int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        stored = 0
    except (OSError, ValueError) as error:
        raise _wrong(path, str(error)) from None
    if not 0 <= stored <= MAX_INCARNATION:
        raise _wrong(path, f"{stored} is out of range")
    incarnation = Incarnation(stored + 1)
    store_incarnation(directory, incarnation)
    return incarnation


def store_incarnation(directory: Path, incarnation: int) -> None:
    """Atomic and durable: a crash leaves the old value or this one."""
    path = directory / _FILE
    fresh = directory / f"{_FILE}.new"
    try:
        with fresh.open("w", encoding="ascii") as file:
            file.write(f"{incarnation}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}; choose another `node.state_dir`"
        ) from None


def _wrong(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path}: not an incarnation ({why}); remove the file, nodes tell the master what it was"
    )
