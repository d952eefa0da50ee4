"""The cluster's secret, by which daemons know each other at their data ports."""

import hashlib
import hmac
import os
import stat
from pathlib import Path

from daemons.core.errors import ConfigError

_MIN_BYTES = 16
_MAX_BYTES = 64 << 10
_MARK_BYTES = 6


def credential_path(name: str, key: str) -> Path:
    """A name without a slash is one of the unit's credentials. Raises ConfigError where the unit has none."""
    if "/" in name:
        return Path(name)
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if not directory:
        raise ConfigError(
            f"`{key}`: {name} names a credential, but there is no $CREDENTIALS_DIRECTORY; "
            "start the unit, or write a path"
        )
    return Path(directory) / name


def read_secret(path: str, key: str = "transfer.secret_file") -> bytes | None:
    """None without a path. Raises ConfigError for a file that others may read or that holds too little."""
    if not path:
        return None
    try:
        secret = _read(credential_path(path, key), key).strip()
    except OSError as error:
        raise ConfigError(f"`{key}`: cannot read {path}: {error.strerror}") from error
    if len(secret) < _MIN_BYTES:
        raise ConfigError(
            f"`{key}`: {path} holds less than {_MIN_BYTES} bytes; openssl rand -hex 32 makes one"
        )
    return secret


def mark_of(secret: bytes | None) -> str:
    """Equal for equal secrets, tells nothing of them: what a daemon shows of the one it has. Empty without one."""
    if secret is None:
        return ""
    return hmac.digest(secret, b"mooncake secret mark", hashlib.sha256)[:_MARK_BYTES].hex()


def _read(file: Path, key: str) -> bytes:
    """Neither a pipe that nobody writes nor a device without an end holds a start up."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            raise ConfigError(f"`{key}`: {file} is no file of at most {_MAX_BYTES} bytes")
        if status.st_mode & 0o007:
            raise ConfigError(f"`{key}`: {file} is open to everyone; chmod 640 it")
        return opened.read()
