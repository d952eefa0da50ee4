"""Where the masters of local clusters count from, over memory, disks and buckets that outlive a cluster's own files.

A master steps down before versions of objects that it did not give out. A service manager starts it again, above
them; a local cluster has none, so each one begins above all before it.
"""

from pathlib import Path
from typing import Final

from daemons.config.key_files import write_whole
from daemons.core.errors import ConfigError
from daemons.core.file_lock import locked
from mcctl.cluster.plan import ClusterOptions

_FILE: Final = "incarnation"
_ROOM: Final = 256
"""Starts of a master in the life of one cluster."""
_LOCK_S: Final = 30.0
"""Another holds it for two small writes."""


def keeps_blocks(options: ClusterOptions) -> bool:
    """Whether anything that is stored may be there for the next cluster."""
    return bool(options.segment_directory or options.ssd_directory or options.object_bucket)


def begin_above(home: Path, state: Path) -> None:
    """Before the first start of a master whose state directory this is; `home` remembers, and no two clusters that
    start together begin alike. Raises ConfigError, Exhausted.
    """
    try:
        for directory in (home, state):
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}; it has to be written to") from None
    counter = home / _FILE
    with locked(counter, wait_s=_LOCK_S):
        try:
            before = int(counter.read_text(encoding="ascii")) + _ROOM
        except (OSError, ValueError):
            before = _ROOM
        for path in (counter, state / _FILE):
            write_whole(path, f"{before}\n")
