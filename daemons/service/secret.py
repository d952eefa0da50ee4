"""The cluster's secret, by which daemons know each other at their data ports."""

from pathlib import Path

from daemons.core.errors import ConfigError

_MIN_BYTES = 16


def read_secret(path: str, key: str = "transfer.secret_file") -> bytes | None:
    """None without a path. Raises ConfigError for a file that others may read or that holds too little."""
    if not path:
        return None
    file = Path(path)
    try:
        mode, secret = file.stat().st_mode, file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"`{key}`: cannot read {path}: {error.strerror}") from error
    if mode & 0o007:
        raise ConfigError(f"`{key}`: {path} is open to everyone; chmod 640 it")
    if len(secret) < _MIN_BYTES:
        raise ConfigError(
            f"`{key}`: {path} holds less than {_MIN_BYTES} bytes; openssl rand -hex 32 makes one"
        )
    return secret
