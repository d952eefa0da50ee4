"""Copies of blocks from peers, which the master asks for: pulled, verified against their seal, sealed here.

Loop thread; bytes move on copy workers, of which one is always left to puts. What lies below the peer's DRAM is staged
there first. A copy keeps version, seal and age of its source, so whatever was cleared since stays cleared.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash, short
from daemons.core.units import MIB
from daemons.mc_cachenode.copies.copy_pull import CopyOutcome, pull_copy
from daemons.mc_cachenode.copies.copy_staging import SourceStaging, StagedSources
from daemons.mc_cachenode.metrics import CachenodeMetrics
from daemons.mc_cachenode.replica import Replica, wall_ms
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.protocol.block import BlockLocation
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.protocol.replication import CopyOrder
from daemons.rpc import Loop
from daemons.store.segment.copy_workers import CopyWorkers
from daemons.store.segment.seal import MAX_LAYERS, trailer_length
from daemons.transfer import TransferEngine

log = logging.getLogger(__name__)

MAX_WAITING: Final = 4096
"""The master asks for less at a time; what is beyond is refused."""

_JOB_BYTES: Final = 8 * MIB
_MAX_STAGED_JOBS: Final = 2
"""One is staged while another is read."""

_Task = tuple[CopyOrder, Replica]
_Release = Callable[[], object]


@dataclass(frozen=True, slots=True)
class CopyParts:
    """What it works with, and whom it tells."""

    loop: Loop
    engine: TransferEngine
    replicas: ReplicaTable
    workers: CopyWorkers
    metrics: CachenodeMetrics
    sources: SourceStaging
    timeout_s: float
    on_sealed: Callable[[Replica], object]
    on_present: Callable[[BlockHash], object]
    """Was here already, which the master does not know."""
    on_failed: Callable[[list[BlockHash], str], object]
    on_bad: Callable[[BlockLocation, str], object]


class Copying:
    """`is_refusing` while the node drains."""

    def __init__(self, parts: CopyParts) -> None:
        self.is_refusing = False
        self._parts = parts
        self._waiting: deque[CopyOrder] = deque()
        self._below: deque[CopyOrder] = deque()
        """Those whose source must be staged first."""
        self._ready: deque[tuple[list[_Task], _Release]] = deque()
        """Staged."""
        self._num_jobs = 0
        self._num_staged_jobs = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._below)

    def ask(self, orders: Sequence[CopyOrder]) -> None:
        room = 0 if self.is_refusing else max(0, MAX_WAITING - self.num_waiting)
        for order in orders[:room]:
            (self._waiting if order.source.tier == "dram" else self._below).append(order)
        if orders[room:]:
            self._fail(orders[room:], "too many copies wait here")
        self._start()

    def _start(self) -> None:
        limit = max(1, self._parts.workers.num_workers - 1)
        while self._num_jobs < limit and (self._ready or self._waiting):
            if self._ready:
                self._submit(*self._ready.popleft())
            elif tasks := self._begin_all(_next_orders(self._waiting)):
                self._submit(tasks, _nothing)
        while self._num_staged_jobs < _MAX_STAGED_JOBS and self._below:
            if tasks := self._begin_all(_next_orders(self._below)):
                self._stage(tasks)

    def _stage(self, tasks: list[_Task]) -> None:
        self._num_staged_jobs += 1
        orders = [order for order, _ in tasks]
        self._parts.sources.stage(orders, lambda staged: self._on_staged(tasks, staged))

    def _on_staged(self, tasks: list[_Task], staged: StagedSources) -> None:
        ready: list[_Task] = []
        missed: list[CopyOrder] = []
        for (order, replica), place in zip(tasks, staged.places, strict=True):
            if place is None:
                self._parts.replicas.abandon(replica)
                missed.append(order)
            else:
                ready.append((msgspec.structs.replace(order, source=place), replica))

        def release() -> None:
            self._num_staged_jobs -= 1
            staged.release()

        if ready:
            # Those that found no slot get the ones of these; each time round there are fewer.
            self._below.extend(missed)
            self._ready.append((ready, release))
        else:
            release()
            self._fail(missed, staged.why)
        self._start()

    def _begin_all(self, orders: Sequence[CopyOrder]) -> list[_Task]:
        return [(order, slot) for order in orders if (slot := self._begin(order))]

    def _begin(self, order: CopyOrder) -> Replica | None:
        """Its slot; None when there is nothing to copy, or no way to."""
        source, replicas = order.source, self._parts.replicas
        existing = replicas.get(order.meta.hash)
        if existing is not None and existing.state == "writing":
            return None  # who writes it reports it
        if existing is not None and existing.version >= source.version:
            self._parts.on_present(order.meta.hash)
            return None
        why = _refusal(order)
        if why is None and replicas.remembered.is_dead(order.meta.hash, source.version):
            why = "it was deleted or replaced"
        if why is not None:
            self._fail([order], why)
            return None
        try:
            replica = replicas.begin(
                order.meta, source.length, source.num_layers, version=source.version
            )
        except Exhausted as error:  # nothing is evicted for a copy
            self._fail([order], error.message)
            return None
        replica.wanted = order.wanted
        return replica

    def _submit(self, tasks: list[_Task], release: _Release) -> None:
        parts = self._parts

        def run() -> None:
            done = [
                pull_copy(parts.engine, order, replica, parts.timeout_s) for order, replica in tasks
            ]
            parts.loop.call_soon_threadsafe(self._finish, done, release)

        try:
            parts.workers.submit(("copy", tasks[0][0].source.node), run, len(tasks))
        except Exhausted as error:
            for _, replica in tasks:
                parts.replicas.abandon(replica)
            release()
            self._fail([order for order, _ in tasks], error.message)
        else:
            self._num_jobs += 1

    def _finish(self, done: list[CopyOutcome], release: _Release) -> None:
        parts = self._parts
        self._num_jobs -= 1
        release()
        failed: dict[str, list[CopyOrder]] = {}
        for outcome in done:
            order, replica, why = outcome.order, outcome.replica, outcome.why
            parts.metrics.pull_seconds.observe(outcome.seconds)
            if outcome.is_bad:
                parts.on_bad(order.source, why or "")
            if why is None and parts.replicas.remembered.is_dead(order.meta.hash, replica.version):
                why = "it was deleted or replaced while it was copied"
            if why is not None:
                parts.replicas.abandon(replica)
                failed.setdefault(why, []).append(order)
                continue
            created_ms = wall_ms() - order.age_ms
            parts.replicas.seal(replica, order.source.seal_checksum, created_ms=created_ms)
            parts.metrics.copied_blocks.labels("sealed").inc()
            parts.metrics.pulled_bytes.inc(replica.length)
            parts.on_sealed(replica)
        parts.replicas.flush()
        for why, orders in failed.items():
            self._fail(orders, why)
        self._start()

    def _fail(self, orders: Sequence[CopyOrder], why: str) -> None:
        hashes = [order.meta.hash for order in orders]
        log.info("not copied block=%s and=%d why=%s", short(hashes[0]), len(hashes) - 1, why)
        self._parts.metrics.copied_blocks.labels("failed").inc(len(hashes))
        self._parts.on_failed(hashes, why)


def _next_orders(waiting: deque[CopyOrder]) -> list[CopyOrder]:
    """Of one source, about a job's worth."""
    orders = [waiting.popleft()]
    num_bytes = orders[0].source.length
    while waiting and waiting[0].source.node == orders[0].source.node:
        num_bytes += waiting[0].source.length
        if num_bytes > _JOB_BYTES:
            break
        orders.append(waiting.popleft())
    return orders


def _nothing() -> None:
    """To let go of, for a source in DRAM."""


def _refusal(order: CopyOrder) -> str | None:
    """What a master never says; whatever it says, nothing here may break."""
    source = order.source
    if order.meta.hash != source.hash or len(source.hash) != HASH_BYTES:
        return "its source is another block"
    if not 0 < source.num_layers <= MAX_LAYERS or source.length < 0 or source.version <= 0:
        return "its source is malformed"
    if source.trailer_bytes != trailer_length(source.num_layers):
        return "its source has another trailer"
    return None
