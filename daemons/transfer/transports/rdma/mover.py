"""Runs the slices of one transfer over its lanes: posts, polls, hands slices of a failed lane to the others.

The calling thread does all of it: handing completions over from a polling thread would cost two thread switches a
slice under the GIL. It polls in small batches; after some empty polls it waits for an event, or sleeps in between where
pyverbs has none, so that other threads run.
"""

import select
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from daemons.core.errors import TransferError
from daemons.core.units import MIB
from daemons.transfer.plan import BatchEnd, BatchId, Send
from daemons.transfer.slices import Slice
from daemons.transfer.transports.rdma.device import link_names
from daemons.transfer.transports.rdma.peer import Endpoint, PeerLost
from daemons.transfer.transports.rdma.queue_pair import Opcode, Piece
from daemons.transfer.transports.rdma.requests import Buffer, Limits, Request, requests_of
from daemons.transfer.transports.rdma.routes import Routes
from daemons.transfer.transports.rdma.verbs import load

_POLL_BATCH = 16
_MAX_LANE_BYTES = 8 * MIB
"""Under way on one lane: above the bandwidth-delay product of 400 Gb/s, and soon answered by a slow device."""
_NUM_YIELDS = 10
_FEW_REQUESTS = 4
_FIRST_SLEEP_S = 20e-6
_LONGEST_SLEEP_S = 500e-6
_NUM_SLEEPS = 8
"""Before it waits for an event, which costs more than such a sleep."""
_EVENT_WAIT_S = 5e-3
_CHECK_PEER_S = 2e-3


class KeyRefused(TransferError):
    """The peer's device refused a key: the region is gone, or was never what we were told."""


class NoLaneLeft(TransferError):
    """Every path of the transfer failed; nothing of it can arrive any more."""


class NotFenced(TransferError):
    """A WRITE ended and the peer did not confirm that its end of the path is gone: it may still land."""


@dataclass(frozen=True, slots=True)
class Keys:
    """How to address a request over one lane."""

    remote_address: int
    remote_chunk_bytes: int
    remote_keys: Sequence[int]
    local: Sequence[tuple[int, int, Sequence[int]]]
    """(base address, chunk bytes, keys) of each registration of the transfer."""

    def remote(self, request: Request) -> tuple[int, int]:
        key = self.remote_keys[request.remote // self.remote_chunk_bytes]
        return self.remote_address + request.remote, key

    def pieces(self, request: Request) -> list[Piece]:
        base, chunk, keys = self.local[request.registration]
        return [
            (address, length, keys[(address - base) // chunk]) for address, length in request.pieces
        ]


@dataclass(slots=True, eq=False)
class _Flight:
    """A slice on its way: what of it is still to be posted, and how many of its requests are not over."""

    send: Send
    unposted: deque[Request]
    num_left: int


@dataclass(slots=True, eq=False)
class Lane:
    """A queue pair of this transfer. It is drained when `posted` is empty."""

    endpoint: Endpoint
    keys: Keys
    max_requests: int = 1
    flights: deque[_Flight] = field(default_factory=deque)
    posted: deque[int] = field(default_factory=deque)
    """Lengths."""
    posted_bytes: int = 0

    @property
    def can_post(self) -> bool:
        return len(self.posted) < self.max_requests and self.posted_bytes < _MAX_LANE_BYTES

    @property
    def has_room(self) -> bool:
        """For another slice: what it has is posted."""
        return self.can_post and not (self.flights and self.flights[-1].unposted)


@dataclass(frozen=True, slots=True)
class Work:
    """What a transfer moves. `check` raises when it is to stop; `finish(i)` follows the last byte of buffer i."""

    opcode: Opcode
    slices: Sequence[Slice]
    buffers: Sequence[Buffer]
    limits: Limits
    check: Callable[[], object]
    finish: Callable[[int], None] | None = None
    near: Collection[str] = ()
    """Paths close to the local memory."""


class Mover:
    """One transfer. Lanes that are left in `lanes` at the end are drained.

    `discard` destroys an endpoint; it returns False when what was posted on it may still land.
    """

    def __init__(
        self,
        work: Work,
        routes: Routes,
        lanes: list[Lane],
        discard: Callable[[Endpoint], bool],
    ) -> None:
        self.lanes = lanes
        self.num_finished = 0
        self.is_fenced = True
        self._work = work
        self._routes = routes
        self._discard = discard
        self._batch: BatchId | None = None
        self._end: BatchEnd | None = None
        self._num_pending: Counter[int] = Counter()
        if work.finish is not None:
            self._num_pending.update(span.buffer for each in work.slices for span in each.spans)
        self._num_empty = 0
        self._next_check_s = 0.0
        self._number = 0
        for lane in lanes:
            endpoint = lane.endpoint
            is_read = work.opcode is Opcode.READ
            lane.max_requests = endpoint.num_reads if is_read else endpoint.queue_pair.depth

    def run(self) -> None:
        """Until every byte is in place. Whatever it raises, no slice is under way any more, if `is_fenced`."""
        if not self._work.slices:
            return
        self._batch = self._routes.submit(self._work.slices, self._work.near)
        try:
            self._run(self._batch)
        except BaseException as error:
            for lane in [lane for lane in self.lanes if lane.flights]:
                self._end_lane(lane, str(error), is_of_path=False)
            self._routes.cancel(self._batch, str(error))
            raise

    def _run(self, batch: BatchId) -> None:
        while True:
            number = self._number
            self._post_all(batch)
            has_moved = self._number != number
            for lane in list(self.lanes):
                has_moved |= self._reap(lane)
            self._finish_buffers()
            if self._end is not None and not self._end.error:
                return
            if not self.is_fenced:
                raise NotFenced("the peer did not confirm the end of a failed path")
            if self._end is not None or not self.lanes:
                raise NoLaneLeft("every path of the transfer failed")
            self._work.check()
            if has_moved:
                self._num_empty = 0
            else:
                self._wait()

    def _post_all(self, batch: BatchId) -> None:
        for lane in list(self.lanes):
            if lane.flights and lane.flights[-1].unposted:
                self._post(lane)
        while self.is_fenced:
            room = {lane.endpoint.path.name: lane.has_room for lane in self.lanes}
            send = self._routes.next(batch, room) if any(room.values()) else None
            if send is None:
                return
            lane = next(each for each in self.lanes if each.endpoint.path.name == send.path)
            requests = requests_of(send.slice, self._work.buffers, self._work.limits)
            lane.flights.append(_Flight(send, deque(requests), len(requests)))
            self._post(lane)

    def _post(self, lane: Lane) -> None:
        unposted, keys, queue_pair = lane.flights[-1].unposted, lane.keys, lane.endpoint.queue_pair
        while unposted and lane.can_post:
            request = unposted.popleft()
            # Counted before it is posted: a lane that fails in between is ended with all it may have under way.
            lane.posted.append(request.length)
            lane.posted_bytes += request.length
            self._number += 1
            try:
                queue_pair.post(
                    self._work.opcode, self._number, keys.remote(request), keys.pieces(request)
                )
            except TransferError as error:
                self._end_lane(lane, error.message, is_of_path=True)
                return

    def _reap(self, lane: Lane) -> bool:
        if not lane.posted:
            return False
        completions = lane.endpoint.queue_pair.poll(_POLL_BATCH)
        for _, status in completions:
            if status:
                self._fail(lane, status)
                return True
            # A reliable queue pair completes in order.
            lane.posted_bytes -= lane.posted.popleft()
            flight = lane.flights[0]
            flight.num_left -= 1
            if not flight.num_left:
                lane.flights.popleft()
                self._end = self._routes.completed(flight.send) or self._end
                if self._work.finish is not None:
                    self._num_pending.subtract(span.buffer for span in flight.send.slice.spans)
        return bool(completions)

    def _fail(self, lane: Lane, status: int) -> None:
        name = link_names().get(status, str(status))
        is_of_path = status != load().IBV_WC_REM_ACCESS_ERR
        why = f"{lane.endpoint.queue_pair.device.name}: {name}"
        self._end_lane(lane, why, is_of_path=is_of_path)
        if not is_of_path:
            raise KeyRefused(f"{lane.endpoint.peer.name} refused access to the region ({name})")

    def _end_lane(self, lane: Lane, why: str, *, is_of_path: bool) -> None:
        """Destroy the queue pair first: only then may another lane fetch its slices again."""
        self.lanes.remove(lane)
        self.is_fenced &= self._discard(lane.endpoint)
        for flight in reversed(lane.flights):  # each goes to the head of what waits
            end = self._routes.failed(flight.send, why, is_of_path=is_of_path)
            self._end = end or self._end
        lane.flights.clear()
        lane.posted.clear()
        lane.posted_bytes = 0

    def _finish_buffers(self) -> None:
        finish = self._work.finish
        if finish is None:
            return
        while self.num_finished < len(self._work.buffers):
            if self._num_pending[self.num_finished]:
                return
            finish(self.num_finished)
            self.num_finished += 1

    def _wait(self) -> None:
        self._num_empty += 1
        # With many requests under way they end one by one: waking for each would cost more than it gains.
        is_deep = any(len(lane.posted) > _FEW_REQUESTS for lane in self.lanes)
        num_sleeps = self._num_empty - (0 if is_deep else _NUM_YIELDS)
        if num_sleeps <= 0:
            time.sleep(0)
            return
        if num_sleeps <= _NUM_SLEEPS or not self._await_event():
            time.sleep(min(_FIRST_SLEEP_S * 2 ** min(num_sleeps // 4, 10), _LONGEST_SLEEP_S))
        now_s = time.monotonic()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + _CHECK_PEER_S
            for lane in self.lanes:
                if not lane.endpoint.peer.is_alive():
                    raise PeerLost(f"{lane.endpoint.peer.name} is gone")

    def _await_event(self) -> bool:
        """Wait for a completion, or first arm what is not armed, to be polled once more; False without events."""
        queue_pairs = [lane.endpoint.queue_pair for lane in self.lanes if lane.posted]
        by_fd = {fd: pair for pair in queue_pairs if (fd := pair.event_fd) is not None}
        if not by_fd or len(by_fd) < len(queue_pairs):
            return False
        newly_armed = [pair.arm() for pair in queue_pairs]
        if any(newly_armed):
            return True
        poller = select.poll()
        for fd in by_fd:
            poller.register(fd, select.POLLIN)
        for fd, _ in poller.poll(_EVENT_WAIT_S * 1000):
            by_fd[fd].take_event()
        return True
