"""What the tier's callers, its readers and its writer all touch, and the futures by which they answer."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from daemons.core.clock import Clock
from daemons.core.errors import McError
from daemons.core.ids import BlockHash
from daemons.store.object.bucket import ObjectBucket
from daemons.store.object.catalog import Catalog, Part
from daemons.store.object.gate import Gate
from daemons.store.object.health import StoreHealth
from daemons.store.object.queue import Pending, PutQueue
from daemons.store.object.settings import ObjectCounters, ObjectSettings

log = logging.getLogger(__name__)

OnDropped = Callable[[Sequence[BlockHash], str], object]
OnFound = Callable[[Sequence[BlockHash]], object]
GONE = "this node's object tier has ended"


@dataclass(slots=True)
class Shared:
    """What the tier's callers and its writer both touch; `lock` guards all but settings, bucket and gate."""

    bucket: ObjectBucket
    settings: ObjectSettings
    clock: Clock
    health: StoreHealth
    lock: threading.Condition = field(default_factory=threading.Condition)
    counters: ObjectCounters = field(default_factory=ObjectCounters)
    catalog: Catalog = field(default_factory=Catalog)
    queue: PutQueue = field(default_factory=PutQueue)
    gate: Gate = field(default_factory=Gate)
    garbage: dict[str, int] = field(default_factory=dict)
    """Keys to be deleted, with their bytes."""
    is_open: bool = False
    """What is in the store is known."""
    is_closed: bool = False
    early_deletes: set[BlockHash] = field(default_factory=set)
    """Asked for before it was open."""

    to_adopt: set[str] = field(default_factory=set)
    """Nodes that are away, whose objects this one is to read."""
    adopted: set[str] = field(default_factory=set)
    """Those whose it reads."""

    @property
    def is_unsettled(self) -> bool:
        """With the lock held: a start would find what was deleted."""
        return not self.is_open or bool(self.queue.deletes or self.garbage or self.catalog.stale)

    def bucket_of(self, part: Part) -> ObjectBucket:
        """Without the lock."""
        return self.bucket.of(part.owner) if part.owner else self.bucket

    def discard(self, part: Part) -> None:
        """With the lock held: its objects are to go."""
        self.garbage.update(zip(part.keys, (0, part.num_bytes), strict=True))


def begun() -> "Future[bool]":
    """One that its waiter cannot cancel."""
    done: Future[bool] = Future()
    done.set_running_or_notify_cancel()
    return done


def finish(done: "Future[bool]", value: bool) -> None:
    """Unless `close` did not wait for it."""
    try:
        done.set_result(value)
    except InvalidStateError:
        log.debug("too late for the one who waited")


def fail(done: "Future[bool]", error: McError) -> None:
    """As `finish`."""
    try:
        done.set_exception(error)
    except InvalidStateError:
        log.debug("too late for the one who waited")


def end_failed(put: Pending, error: McError) -> None:
    """One that was deleted has its answer all the same."""
    if put.is_cancelled:
        finish(put.done, False)
    else:
        fail(put.done, error)
