"""The counter of this master's lives, the only thing it keeps on disk here: each start is one more than any seen."""

from pathlib import Path

from daemons.core.errors import ConfigError, Exhausted
from daemons.core.ids import Incarnation
from daemons.service.paths import NO_ROOM, read_state, write_durably

_FILE = "incarnation"
_MAX_DIGITS = 100
"""Far more than any has, and no more than a message shows."""
_MAX_KEPT = (1 << 24) - 2
"""The next one must fit the versions of names, which have 24 bits for it."""


def next_incarnation(directory: Path) -> Incarnation:
    """Take the next one; on disk before it is returned. Raises ConfigError when it cannot be read or kept, Exhausted
    on a full disk."""
    path = directory / _FILE
    try:
        stored = int(read_state(path)[:_MAX_DIGITS].decode("ascii"))
    except FileNotFoundError:
        stored = 0
    except (OSError, ValueError) as error:
        raise _wrong(path, str(error)) from None
    if not 0 <= stored <= _MAX_KEPT:
        raise _wrong(path, f"{stored} is out of range")
    incarnation = Incarnation(stored + 1)
    store_incarnation(directory, incarnation)
    return incarnation


def store_incarnation(directory: Path, incarnation: int) -> None:
    """Atomic and durable: a crash leaves the old value or this one. Raises as `next_incarnation`."""
    path = directory / _FILE
    try:
        write_durably(path, f"{incarnation}\n".encode())
    except OSError as error:
        if error.errno in NO_ROOM:
            raise Exhausted(f"{path}: {error.strerror}; make room there") from None
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}; choose another `node.state_dir`"
        ) from None


def _wrong(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path}: not an incarnation ({why}); remove the file, nodes tell the master what it was"
    )
