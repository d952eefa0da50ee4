"""What one reader knows of the nodes it reads from: one that failed a read is suspect, and others are asked first.

A suspect node is tried again by one read after a pause, and one answer clears it: nothing here outlives a node that
is back. It is this reader's view alone; `on_suspect` lets the master hear of it, which makes up its own mind.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from daemons.core.errors import McError
from daemons.core.ids import NodeId
from daemons.protocol.block import BlockLocation, SuspectNode
from daemons.transfer import NoTurn

HEDGE_S: Final = 0.1
"""A replica that has not answered for so long is left for another one."""

PATIENT_S: Final = 2.0
"""How long a replica may be silent when there is no other one left."""

_FIRST_PAUSE_S: Final = 0.5
_LAST_PAUSE_S: Final = 4.0
_MAX_SUSPECTS: Final = 1024

OnSuspect = Callable[[BlockLocation, str], object]
Found = TypeVar("Found")


@dataclass(slots=True)
class _Suspect:
    until_s: float
    pause_s: float = _FIRST_PAUSE_S


class NodeHealth:
    """Thread safe; one per process. Goes by the life of a node, so one that was restarted begins in good standing."""

    def __init__(
        self,
        *,
        hedge_s: float = HEDGE_S,
        on_suspect: OnSuspect = lambda _at, _why: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hedge_s = hedge_s
        self._on_suspect = on_suspect
        self._clock = clock
        self._lock = threading.Lock()
        self._suspects: dict[tuple[NodeId, int], _Suspect] = {}

    def is_suspect(self, at: BlockLocation) -> bool:
        """False too for the one caller whose read is to find out, when the pause is over: it must then read."""
        if not self._suspects:
            return False
        with self._lock:
            suspect = self._suspects.get(life_of(at))
            if suspect is None:
                return False
            now_s = self._clock()
            if now_s < suspect.until_s:
                return True
            suspect.until_s = now_s + suspect.pause_s
            return False

    def failed(self, at: BlockLocation, error: McError) -> None:
        """It did not answer, or refused; says nothing of its bytes. Each time in a row the pause is longer.

        What waited behind transfers of our own speaks of them, and not of the node.
        """
        if isinstance(error, NoTurn):
            return
        with self._lock:
            now_s = self._clock()
            suspect = self._suspects.get(life_of(at))
            if suspect is None:
                if len(self._suspects) >= _MAX_SUSPECTS:
                    del self._suspects[next(iter(self._suspects))]
                self._suspects[life_of(at)] = _Suspect(now_s + _FIRST_PAUSE_S)
            else:
                suspect.pause_s = min(2 * suspect.pause_s, _LAST_PAUSE_S)
                suspect.until_s = now_s + suspect.pause_s
        self._on_suspect(at, error.message)

    def answered(self, at: BlockLocation) -> None:
        if self._suspects:
            with self._lock:
                self._suspects.pop(life_of(at), None)

    def first(
        self,
        replicas: Sequence[BlockLocation],
        attempt: Callable[[BlockLocation, float], Found | None],
        *,
        timeout_s: float,
    ) -> Found | None:
        """What `attempt(replica, seconds it may be silent)` gives for the first replica that has it; None: none has.

        An attempt returns None for bytes that are not what they should be, and raises where it cannot read. Each but
        the last may be silent for `hedge_s`; when all were, they are asked again with more patience, but for those that
        were suspect before. Raises the last error where none could be read.
        """
        deadline_s = self._clock() + timeout_s
        was_suspect = [self.is_suspect(each) for each in replicas]
        good = [each for each, flag in zip(replicas, was_suspect, strict=True) if not flag]
        poor = [each for each, flag in zip(replicas, was_suspect, strict=True) if flag]
        hedged = [*good, *poor] if poor else good[:-1]
        rounds = [(each, self.hedge_s) for each in hedged]
        rounds += [(each, PATIENT_S) for each in reversed(good)]
        bad: set[tuple[NodeId, int]] = set()
        error: McError | None = None
        for replica, silent_s in rounds:
            left_s = deadline_s - self._clock()
            if life_of(replica) in bad or left_s <= 0:
                continue
            try:
                found = attempt(replica, min(silent_s, left_s))
            except McError as raised:
                error = raised
                self.failed(replica, raised)
                continue
            self.answered(replica)
            if found is not None:
                return found
            bad.add(life_of(replica))
        if error is not None and len(bad) < len(replicas):
            raise error
        return None


def suspicion(at: BlockLocation, why: str) -> SuspectNode:
    """What the master is told."""
    return SuspectNode(node=at.node, epoch=at.region.address.epoch, why=why)


def life_of(at: BlockLocation) -> tuple[NodeId, int]:
    """A node, and which life of it."""
    return at.node, at.region.address.epoch
