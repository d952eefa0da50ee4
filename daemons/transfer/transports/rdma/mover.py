"""Runs the slices of one transfer over its lanes: posts, polls, hands slices of a failed lane to the others.

The calling thread does all of it: handing completions over from a polling thread would cost two thread switches a
slice under the GIL. It polls in small batches; after some empty polls it waits for an event, or sleeps in between where
pyverbs has none, so that other threads run.
"""

import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from daemons.core.errors import TransferError
from daemons.core.units import MIB
from daemons.transfer.transports.rdma.device import link_names
from daemons.transfer.transports.rdma.peer import Endpoint, PeerLost
from daemons.transfer.transports.rdma.queue_pair import Opcode, Piece
from daemons.transfer.transports.rdma.slices import Slice
from daemons.transfer.transports.rdma.verbs import load

_POLL_BATCH = 16
_MAX_LANE_BYTES = 4 * MIB
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
    """How to address a slice over one lane."""

    remote_address: int
    remote_chunk_bytes: int
    remote_keys: Sequence[int]
    local: Sequence[tuple[int, int, Sequence[int]]]
    """(base address, chunk bytes, keys) of each registration of the transfer."""

    def remote(self, piece: Slice) -> tuple[int, int]:
        key = self.remote_keys[piece.remote // self.remote_chunk_bytes]
        return self.remote_address + piece.remote, key

    def pieces(self, piece: Slice) -> list[Piece]:
        base, chunk, keys = self.local[piece.registration]
        return [
            (address, length, keys[(address - base) // chunk]) for address, length in piece.pieces
        ]


@dataclass(slots=True, eq=False)
class Lane:
    endpoint: Endpoint
    keys: Keys
    in_flight: deque[Slice] = field(default_factory=deque)
    in_flight_bytes: int = 0
    max_requests: int = 1


@dataclass(frozen=True, slots=True)
class Work:
    """What a transfer moves. `check` raises when it is to stop; `finish(i)` follows the last byte of range i."""

    opcode: Opcode
    slices: Iterator[Slice]
    check: Callable[[], object]
    finish: Callable[[int], None] | None = None
    num_ranges: int = 0


class Mover:
    """One transfer. Lanes that are left in `lanes` at the end are drained.

    `discard` destroys an endpoint; it returns False when what was posted on it may still land.
    """

    def __init__(self, work: Work, lanes: list[Lane], discard: Callable[[Endpoint], bool]) -> None:
        self.lanes = lanes
        self.num_finished = 0
        self.is_fenced = True
        self._work = work
        self._opcode = work.opcode
        self._slices = work.slices
        self._again: deque[Slice] = deque()
        self._discard = discard
        self._finishes_ranges = work.finish is not None
        self._pending: dict[int, int] = {}
        self._last_index = 0
        self._is_exhausted = False
        self._num_empty = 0
        self._next_check_s = 0.0
        self._number = 0
        for lane in lanes:
            is_read = work.opcode is Opcode.READ
            lane.max_requests = (
                lane.endpoint.num_reads if is_read else lane.endpoint.queue_pair.depth
            )

    def run(self) -> None:
        """Until every byte is in place. Whatever it raises, no slice is under way any more, if `is_fenced`."""
        try:
            self._run()
        except BaseException:
            for lane in [lane for lane in self.lanes if lane.in_flight]:
                self._end_lane(lane)
            raise

    def _run(self) -> None:
        while True:
            has_moved = self._post_all()
            for lane in list(self.lanes):
                has_moved |= self._reap(lane)
            self._finish_ranges()
            if self._is_exhausted and not self._again and not any(x.in_flight for x in self.lanes):
                return
            if not self.is_fenced:
                raise NotFenced("the peer did not confirm the end of a failed path")
            if not self.lanes:
                raise NoLaneLeft("every path of the transfer failed")
            self._work.check()
            if has_moved:
                self._num_empty = 0
            else:
                self._wait()

    def _post_all(self) -> bool:
        number = self._number
        while (lane := self._emptiest_lane()) is not None:
            piece = self._next_slice()
            if piece is None:
                break
            self._post(lane, piece)
        return self._number != number

    def _emptiest_lane(self) -> Lane | None:
        """The next slice goes where least is under way, so a faster lane takes more of them."""
        best = None
        for lane in self.lanes:
            in_flight_bytes = lane.in_flight_bytes
            has_room = len(lane.in_flight) < lane.max_requests and in_flight_bytes < _MAX_LANE_BYTES
            if has_room and (best is None or in_flight_bytes < best.in_flight_bytes):
                best = lane
        return best

    def _next_slice(self) -> Slice | None:
        if self._again:
            return self._again.popleft()
        piece = next(self._slices, None)
        if piece is None:
            self._is_exhausted = True
        elif self._finishes_ranges:
            self._pending[piece.first] = self._pending.get(piece.first, 0) + 1
            self._last_index = piece.first
        return piece

    def _post(self, lane: Lane, piece: Slice) -> None:
        # Counted before it is posted: a lane that fails in between is ended with all it may have under way.
        lane.in_flight.append(piece)
        lane.in_flight_bytes += piece.length
        lane.endpoint.path.outstanding_bytes += piece.length
        self._number += 1
        keys = lane.keys
        try:
            lane.endpoint.queue_pair.post(
                self._opcode, self._number, keys.remote(piece), keys.pieces(piece)
            )
        except TransferError as error:
            lane.endpoint.path.fail(error.message)
            self._end_lane(lane)

    def _reap(self, lane: Lane) -> bool:
        if not lane.in_flight:
            return False
        completions = lane.endpoint.queue_pair.poll(_POLL_BATCH)
        for _, status in completions:
            if status:
                self._fail(lane, status)
                return True
            piece = lane.in_flight.popleft()  # a reliable queue pair completes in order
            lane.in_flight_bytes -= piece.length
            lane.endpoint.path.outstanding_bytes -= piece.length
            if self._finishes_ranges:
                self._pending[piece.first] -= 1
        if completions:
            lane.endpoint.path.succeed()
        return bool(completions)

    def _fail(self, lane: Lane, status: int) -> None:
        verbs = load()
        name = link_names().get(status, str(status))
        self._end_lane(lane)
        if status == verbs.IBV_WC_REM_ACCESS_ERR:
            raise KeyRefused(f"{lane.endpoint.peer.name} refused access to the region ({name})")
        lane.endpoint.path.fail(f"{lane.endpoint.queue_pair.device.name}: {name}")

    def _end_lane(self, lane: Lane) -> None:
        """Destroy the queue pair first: only then may another lane fetch its slices again."""
        self.lanes.remove(lane)
        self.is_fenced &= self._discard(lane.endpoint)
        lane.endpoint.path.outstanding_bytes -= lane.in_flight_bytes
        self._again.extend(lane.in_flight)
        lane.in_flight.clear()
        lane.in_flight_bytes = 0

    def _finish_ranges(self) -> None:
        finish = self._work.finish
        if finish is None:
            return
        end = self._work.num_ranges if self._is_exhausted else self._last_index
        while self.num_finished < end and not self._pending.get(self.num_finished):
            self._pending.pop(self.num_finished, None)
            finish(self.num_finished)
            self.num_finished += 1

    def _wait(self) -> None:
        self._num_empty += 1
        # With many requests under way they end one by one: waking for each would cost more than it gains.
        is_deep = any(len(lane.in_flight) > _FEW_REQUESTS for lane in self.lanes)
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
        queue_pairs = [lane.endpoint.queue_pair for lane in self.lanes if lane.in_flight]
        by_fd = {fd: pair for pair in queue_pairs if (fd := pair.event_fd) is not None}
        if len(by_fd) < len(queue_pairs):
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
