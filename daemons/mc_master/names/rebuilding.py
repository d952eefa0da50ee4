"""Whether this master has heard of all objects yet: since its start every known cache node announced, or is dead.

The ids of the cache nodes are kept in the state directory, nothing of what they hold.
"""

import logging
from pathlib import Path
from typing import Final

from daemons.core.ids import Incarnation, NodeId
from daemons.mc_master.nodes.kept_nodes import KeptNodes

log = logging.getLogger(__name__)

_FILE: Final = "cachenodes"
_SETTLE_S: Final = 3.0
"""Time to join again for nodes that a master without their ids waits for."""


class Rebuilding:
    """Over once and for all when it is over."""

    def __init__(self, directory: Path, incarnation: Incarnation, limit_s: float) -> None:
        self._known = KeptNodes(directory / _FILE)
        """Lost ones only mean that an object may count as missing too early."""
        self._awaited = set(self._known)
        self.limit_s = limit_s
        """By then it is over, whoever is still missing."""
        self._settle_s = 0.0 if self._awaited or incarnation == 1 else _SETTLE_S
        self._is_over = False

    def is_on(self, age_s: float) -> bool:
        """`age_s`: since the start of this master."""
        if not self._is_over:
            is_waiting = bool(self._awaited) or age_s < self._settle_s
            self._is_over = age_s >= self.limit_s or not is_waiting
            if self._is_over and self._awaited:
                log.warning("not announced nodes=%s; they count as away", sorted(self._awaited))
        return not self._is_over

    def tick(self) -> None:
        """Now and then."""
        self._known.retry()

    def joined(self, node: NodeId) -> None:
        """A cache node that will announce what it has."""
        if not self._is_over:
            self._awaited.add(node)
        self._known.add(node)

    def announced(self, node: NodeId) -> None:
        """All that it has, or it is gone."""
        self._awaited.discard(node)

    def left(self, node: NodeId) -> None:
        """Nobody is to wait for it after the next start."""
        self._awaited.discard(node)
        self._known.remove(node)
