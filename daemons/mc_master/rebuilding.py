"""Whether this master has heard of all objects yet: since its start every known cache node announced, or is dead.

The ids of the cache nodes are kept in the state directory, nothing of what they hold.
"""

import logging
from pathlib import Path
from typing import Final

from daemons.core.ids import Incarnation, NodeId

log = logging.getLogger(__name__)

_FILE: Final = "cachenodes"
_SETTLE_S: Final = 3.0
"""Time to join again for nodes that a master without their ids waits for."""


class Rebuilding:
    """Over once and for all when it is over."""

    def __init__(self, directory: Path, incarnation: Incarnation, limit_s: float) -> None:
        self._path = directory / _FILE
        self._known = _read(self._path)
        self._awaited = set(self._known)
        self._limit_s = limit_s
        self._settle_s = 0.0 if self._known or incarnation == 1 else _SETTLE_S
        self._is_over = False

    def is_on(self, age_s: float) -> bool:
        """`age_s`: since the start of this master."""
        if not self._is_over:
            is_waiting = bool(self._awaited) or age_s < self._settle_s
            self._is_over = age_s >= self._limit_s or not is_waiting
            if self._is_over and self._awaited:
                log.warning("not announced nodes=%s; they count as away", sorted(self._awaited))
        return not self._is_over

    def joined(self, node: NodeId) -> None:
        """A cache node that will announce what it has."""
        if not self._is_over:
            self._awaited.add(node)
        if node not in self._known:
            self._known.add(node)
            self._write()

    def announced(self, node: NodeId) -> None:
        """All that it has, or it is gone."""
        self._awaited.discard(node)

    def left(self, node: NodeId) -> None:
        """Nobody is to wait for it after the next start."""
        self._awaited.discard(node)
        if node in self._known:
            self._known.remove(node)
            self._write()

    def _write(self) -> None:
        """A crash leaves the old ids or these; lost ones only mean that an object may count as missing too early."""
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_text("".join(f"{node}\n" for node in sorted(self._known)), "utf-8")
            fresh.replace(self._path)
        except OSError as error:
            log.warning("known nodes not kept path=%s why=%s", self._path, error.strerror)


def _read(path: Path) -> set[NodeId]:
    try:
        return {NodeId(line) for line in path.read_text("utf-8").splitlines() if line}
    except FileNotFoundError:
        return set()
    except (OSError, UnicodeDecodeError) as error:
        log.warning("known nodes not read path=%s why=%s", path, error)
        return set()
