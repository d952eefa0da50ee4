"""Where a daemon keeps its files: what systemd gives it, else the user's own directories."""

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from daemons.core.errors import ConfigError

_MAX_STATE_BYTES: Final = 1 << 26
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Of an OSError that passes once somebody has made room."""


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
    """A crash leaves the old bytes or these. Raises OSError; nothing is left of what it could not write."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)  # whatever it is: a pipe would be waited for
        with fresh.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_state(path: Path) -> bytes:
    """A small file that `write_durably` left. Raises OSError, for what is none as well; never waits for what it is."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        if status.st_size > _MAX_STATE_BYTES:
            raise OSError(errno.EFBIG, f"it has {status.st_size} bytes", str(path))
        return os.read(descriptor, status.st_size)
    finally:
        os.close(descriptor)
