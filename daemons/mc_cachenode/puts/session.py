"""A put in progress, and what all that works on one works with."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash, Incarnation
from daemons.mc_cachenode.metrics import CachenodeMetrics
from daemons.mc_cachenode.puts.pull import PullOutcome
from daemons.mc_cachenode.replica import Replica
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.mc_cachenode.reporter import Reporter
from daemons.protocol.block import BlockLocation, Put, PutStatus
from daemons.rpc import Call, Loop, Timer
from daemons.store.segment.copy_workers import CopyWorkers
from daemons.transfer import TransferEngine

_RETRY_AFTER_MS: Final = 50


@dataclass(slots=True, eq=False)
class PutSession:
    """A put in progress. `waiting`: indexes of blocks for which there is no room yet."""

    put: Put
    calls: list[Call]
    results: list[PutStatus]
    engine: TransferEngine
    """That pulls all of it: a client's put opens nothing that only daemons may open."""
    num_left: int = 0
    """Being pulled."""
    waiting: list[int] = field(default_factory=list)
    timer: Timer | None = None
    why: str = ""
    retry_after_ms: int | None = None
    indexes: dict[BlockHash, int] = field(default_factory=dict)
    untold: list[PullOutcome] = field(default_factory=list)
    """Recorded here; whoever else is to hear of them does after the answer."""

    def exhausted(self, error: Exhausted) -> PutStatus:
        """The status of a block for which there is no room, and why."""
        self.why = error.message
        self.retry_after_ms = error.retry_after_ms or _RETRY_AFTER_MS
        return "exhausted"


@dataclass(frozen=True, slots=True)
class PutParts:
    """What puts work with."""

    loop: Loop
    engine: TransferEngine
    outside: TransferEngine
    """For puts of clients: it opens no daemon's memory."""
    replicas: ReplicaTable
    workers: CopyWorkers
    reporter: Reporter
    metrics: CachenodeMetrics
    pull_timeout_s: float
    room_wait_s: float
    """How long a put waits for room; 0: not at all."""
    incarnation: Callable[[], Incarnation]
    """Of the latest master that this node has joined."""
    is_joined: Callable[[], bool]
    """Whether there is a master, which chooses victims."""
    may_evict: Callable[[], bool]
    """Whether this node chooses them itself: it has been without a master for too long."""
    leaves_later: Callable[[Replica], bool]
    """Whether a victim of ours is written to a lower tier first, and freed then."""
    locate: Callable[[Replica], BlockLocation]
    replaced: Callable[[Replica], Sequence[Future[bool]]]
    """It was sealed: done when no older version of it comes back, whatever memory is lost."""
    on_sealed: Callable[[Replica], object]
    drop: Callable[[Replica, str], object]
    """For a block that is found damaged."""
