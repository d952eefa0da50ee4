"""The list of keys: read from its file whenever that changes, told to every member, and who is not on it put out."""

import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from daemons.config.key_files import read_key_list
from daemons.core.errors import ConfigError
from daemons.rpc import AllowedList, Loop

log = logging.getLogger(__name__)

POLL_S: Final = 0.2
"""How long a revoked key may last."""

_Stamp = tuple[int, int, int] | None


class KeyWatch:
    """Loop thread only. Raises ConfigError when made with a file that is none; later that leaves the list as it is.

    `tell` is called with the keys that are new on it.
    """

    def __init__(
        self,
        loop: Loop,
        path: Path,
        allowed: AllowedList,
        tell: Callable[[Collection[str]], object],
    ) -> None:
        self._path = path
        self._allowed = allowed
        self._tell = tell
        self._stamp = _stamp_of(path)
        allowed.replace(read_key_list(path).allowed())
        loop.every(POLL_S, self.run_once)

    def run_once(self) -> None:
        stamp = _stamp_of(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            keys = read_key_list(self._path).allowed()
        except ConfigError as error:
            log.error("keys unchanged why=%s", error.message)  # noqa: TRY400 - an operator's slip, no traceback
            return
        fresh = {key.public for key in keys} - {key.public for key in self._allowed}
        self._allowed.replace(keys)
        log.info("keys read file=%s count=%d", self._path, len(keys))
        self._tell(fresh)


def _stamp_of(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
