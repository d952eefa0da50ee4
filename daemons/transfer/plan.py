"""Which slice goes over which path, pure: spread by load and measured rate, outliving paths that fail.

A path is whatever the transport can send over and lose on its own: a pair of RDMA devices, a pair of TCP addresses.
Every slice ends exactly once; a batch ends when all of its slices did, and nothing of it is in flight after that.

    book = PathBook([Path("mlx5_0"), Path("mlx5_1")])
    spans = [span for read in reads for span in spans_of(read.remote, read.target)]
    size = slice_bytes(sum(span.length for span in spans), num_paths=2)
    batch = book.submit(cut(spans, size), near={"mlx5_0"})
    while batch not in ended:
        while send := book.next(now()):             # None: wait for a completion, or until book.wake_s(now())
            post(send.path, send.slice.spans, ticket=send.ticket)
        for ticket, error in poll():
            end = book.failed(ticket, error, now()) if error else book.completed(ticket, now())
            ended |= {end.batch: end.error} if end else {}

One lock around every call makes it serve several threads; `next(now, batch)` hands out slices of one batch only.
"""

import itertools
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NewType

from daemons.transfer.path_record import Path, PathPolicy, PathRecord, PathView
from daemons.transfer.slices import Slice

BatchId = NewType("BatchId", int)
Ticket = NewType("Ticket", int)
"""One attempt to send one slice."""


@dataclass(frozen=True, slots=True)
class Send:
    """Effect: send this slice over this path, then report `ticket`."""

    ticket: Ticket
    batch: BatchId
    path: str
    slice: Slice
    is_trial: bool
    """The path failed before; this slice shows whether it works again."""


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """Effect: nothing of the batch is in flight. `error` is empty when every byte arrived."""

    batch: BatchId
    error: str


@dataclass(slots=True, eq=False)
class _Work:
    """A slice of a batch and where it failed."""

    slice: Slice
    attempts: int = 0
    failed_on: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Batch:
    batch: BatchId
    pending: deque[_Work]
    near: frozenset[str]
    served_bytes: int
    """Handed out so far, counted from what the least served batch had when this one came: fair queueing."""
    num_in_flight: int = 0
    error: str = ""

    @property
    def is_over(self) -> bool:
        return not self.pending and not self.num_in_flight


class _Flight(NamedTuple):
    batch: _Batch
    work: _Work
    path: PathRecord
    is_trial: bool


class PathBook:
    """The paths to one peer and the batches on them. Calls take the time; they must not go back in it."""

    def __init__(self, paths: Sequence[Path], policy: PathPolicy | None = None) -> None:
        assert paths, "a peer without a path cannot be asked for anything"
        self._policy = policy or PathPolicy()
        self._paths = {path.name: PathRecord(path) for path in paths}
        self._efficiency = 1.0
        self._batches: dict[BatchId, _Batch] = {}
        self._flights: dict[Ticket, _Flight] = {}
        self._batch_ids = itertools.count(1)
        self._tickets = itertools.count(1)

    def submit(self, slices: Sequence[Slice], near: Collection[str] = ()) -> BatchId:
        """Queue a batch. `near` are the paths close to its memory; none named means all are."""
        assert slices, "an empty batch would never end"
        batch_id = BatchId(next(self._batch_ids))
        served = min((batch.served_bytes for batch in self._batches.values()), default=0)
        works = deque(_Work(piece) for piece in slices)
        self._batches[batch_id] = _Batch(batch_id, works, frozenset(near), served)
        return batch_id

    def next(
        self,
        now_s: float,
        batch: BatchId | None = None,
        room: Mapping[str, bool] | None = None,
    ) -> Send | None:
        """What to send now; None when the paths are full or being tried, or nothing is left to send.

        `room` names the only paths the caller can send over, and whether each takes a slice now.
        """
        waiting = [
            b for b in self._batches.values() if b.pending and (batch is None or b.batch == batch)
        ]
        # Least served first; one whose own best path is full does not hold back those that want others.
        for chosen in sorted(waiting, key=lambda b: (b.served_bytes, b.batch)):
            path = self._choose(chosen, chosen.pending[0], now_s, room)
            if path is not None:
                return self._send(chosen, chosen.pending.popleft(), path, now_s)
        return None

    def completed(self, ticket: Ticket, now_s: float) -> BatchEnd | None:
        """Its bytes are in place."""
        flight = self._land(ticket, now_s)
        path = flight.path
        if path.learn(flight.work.slice.length, self._policy):
            measured = [(p.rate, p.path.bytes_per_s) for p in self._paths.values() if p.rate]
            self._efficiency = max(rate / speed for rate, speed in measured)
        if flight.is_trial:
            path.pause_s = 0.0
        return self._end_if_over(flight.batch)

    def failed(
        self, ticket: Ticket, why: str, now_s: float, *, may_retry: bool = True
    ) -> BatchEnd | None:
        """It will not arrive any more. `may_retry` False: the request is at fault, not the path."""
        flight = self._land(ticket, now_s)
        batch, work, path, is_trial = flight
        work.failed_on.add(path.path.name)
        if may_retry:
            path.blame(self._policy, now_s, is_trial=is_trial)
        is_hopeless = work.attempts >= self._policy.max_attempts or (
            len(work.failed_on) == len(self._paths) and all(p.pause_s for p in self._paths.values())
        )
        if batch.error or not may_retry or is_hopeless:
            batch.error = batch.error or why
            batch.pending.clear()
        else:
            batch.pending.appendleft(work)
        return self._end_if_over(batch)

    def blame(self, path: str, now_s: float) -> None:
        """It failed while nothing of ours was on it: it could not be connected."""
        found = self._paths[path]
        found.blame(self._policy, now_s, is_trial=found.state(now_s) == "due")

    def cancel(self, batch: BatchId, why: str) -> BatchEnd | None:
        """Send nothing more of it. It ends when what is in flight was reported; None for one that has ended, too."""
        found = self._batches.get(batch)
        if found is None:
            return None
        found.error = found.error or why
        found.pending.clear()
        return self._end_if_over(found)

    def in_flight(self, batch: BatchId) -> list[Ticket]:
        """What the transport has to abort or await before the batch can end."""
        return [ticket for ticket, flight in self._flights.items() if flight.batch.batch == batch]

    def wake_s(self, now_s: float) -> float | None:
        """When the next pause ends: ask `next` again then. None: only a completion can change anything."""
        ends = [p.paused_until_s for p in self._paths.values() if p.state(now_s) == "paused"]
        return min(ends, default=None)

    def views(self, now_s: float) -> list[PathView]:
        """Every path as it is seen now."""
        return [p.view(self._policy, now_s, self._efficiency) for p in self._paths.values()]

    def check_invariants(self) -> None:
        """For tests."""
        for path in self._paths.values():
            mine = [f for f in self._flights.values() if f.path is path]
            assert path.num_in_flight == len(mine)
            assert path.outstanding_bytes == sum(f.work.slice.length for f in mine)
            assert path.has_trial == any(f.is_trial for f in mine)
            assert 0 <= path.pause_s <= self._policy.max_pause_s
            assert path.rate is None or path.rate > 0
        for batch in self._batches.values():
            mine = [f for f in self._flights.values() if f.batch is batch]
            assert batch.num_in_flight == len(mine)
            assert not batch.is_over, "an ended batch is forgotten"
            works = [*batch.pending, *(f.work for f in mine)]
            assert len({id(work) for work in works}) == len(works), "a slice is queued twice"

    def _choose(
        self, batch: _Batch, work: _Work, now_s: float, room: Mapping[str, bool] | None
    ) -> PathRecord | None:
        """A due path gets one fresh slice as its trial; else the path that is done first; else any paused one."""
        paths: Collection[PathRecord] = self._paths.values()
        full: set[str] = set()
        if room is not None:
            paths = [path for path in paths if path.path.name in room]
            full = {name for name, has_room in room.items() if not has_room}
        if not work.attempts:
            for path in paths:
                if path.state(now_s) == "due" and path.may_try and path.path.name not in full:
                    return path
        up = [path for path in paths if not path.pause_s]
        if up:
            fresh = [path for path in up if path.path.name not in work.failed_on]
            best = min(fresh or up, key=lambda path: self._cost(path, batch, work, now_s))
            # A full best path is worth waiting for: its queue is in the cost already.
            return best if best.has_room and best.path.name not in full else None
        idle = [path for path in paths if path.may_try and path.path.name not in full]
        return min(
            idle, key=lambda p: (p.path.name in work.failed_on, p.paused_until_s), default=None
        )

    def _cost(self, path: PathRecord, batch: _Batch, work: _Work, now_s: float) -> float:
        """Seconds until the slice would be there, as if a far path were so many times slower."""
        seconds = (path.outstanding_bytes + work.slice.length) / self._rate(path, now_s)
        is_far = bool(batch.near) and path.path.name not in batch.near
        return seconds * self._policy.far_penalty if is_far else seconds

    def _rate(self, path: PathRecord, now_s: float) -> float:
        return path.current_rate(self._policy, now_s, self._efficiency)

    def _send(self, batch: _Batch, work: _Work, path: PathRecord, now_s: float) -> Send:
        length, is_trial = work.slice.length, bool(path.pause_s)
        ticket = Ticket(next(self._tickets))
        self._flights[ticket] = _Flight(batch, work, path, is_trial)
        path.begin(length, now_s, self._rate(path, now_s))
        batch.num_in_flight += 1
        batch.served_bytes += length
        work.attempts += 1
        return Send(ticket, batch.batch, path.path.name, work.slice, is_trial)

    def _land(self, ticket: Ticket, now_s: float) -> _Flight:
        flight = self._flights.pop(ticket)
        flight.path.end(flight.work.slice.length, now_s, is_trial=flight.is_trial)
        flight.batch.num_in_flight -= 1
        return flight

    def _end_if_over(self, batch: _Batch) -> BatchEnd | None:
        if not batch.is_over:
            return None
        del self._batches[batch.batch]
        return BatchEnd(batch.batch, batch.error)
