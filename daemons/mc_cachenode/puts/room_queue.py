"""Puts for whose blocks there is no room yet: each waits a bounded time, and those that came first get room first."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from daemons.core.ids import PutId
from daemons.mc_cachenode.puts.refusal import payload_bytes
from daemons.mc_cachenode.puts.session import PutSession
from daemons.rpc import Call, Loop
from daemons.store.segment.segment_set import SegmentSet

_MAX_WAITING_BLOCKS: Final = 4096
_ASK_AGAIN_S: Final = 0.1


class RoomQueue:
    """Loop thread only."""

    def __init__(
        self,
        loop: Loop,
        segments: SegmentSet,
        room_wait_s: float,
        *,
        begin: Callable[[PutSession], object],
        settle: Callable[[PutSession], object],
    ) -> None:
        """`begin` tries what waits of a put again; `settle` answers it if nothing is left of it."""
        self._loop = loop
        self._segments = segments
        self._room_wait_s = room_wait_s
        self._begin = begin
        self._settle = settle
        self._waiting: OrderedDict[PutId, PutSession] = OrderedDict()
        self._is_retrying = self._is_polling = False

    def wait(self, session: PutSession, call: Call) -> None:
        """Until there is room, or the time is over. At once where too many wait, or a block can never fit."""
        num_waiting = sum(len(each.waiting) for each in self._waiting.values())
        slab_bytes = self._segments.slab_bytes
        blocks = [session.put.blocks[index] for index in session.waiting]
        may_fit = all(payload_bytes(block) <= slab_bytes for block in blocks)
        left_s = call.answer_by_s - self._loop.clock()
        wait_s = min(self._room_wait_s, left_s)
        if wait_s <= 0 or not may_fit or num_waiting + len(blocks) > _MAX_WAITING_BLOCKS:
            session.waiting = []
            return
        self._waiting[session.put.put_id] = session
        session.timer = self._loop.call_later(wait_s, self._give_up, session)
        self._poll_later()

    def _poll_later(self) -> None:
        """What may go changes without anybody saying so: leases end."""
        if self._waiting and not self._is_polling:
            self._is_polling = True
            self._loop.call_later(_ASK_AGAIN_S, self._poll)

    def _poll(self) -> None:
        self._is_polling = False
        self.on_room()
        self._poll_later()

    def _give_up(self, session: PutSession) -> None:
        """What still waits is refused; its result says so already."""
        self._waiting.pop(session.put.put_id, None)
        session.waiting = []
        self._settle(session)

    def on_room(self) -> None:
        if self._waiting and not self._is_retrying:
            self._is_retrying = True
            self._loop.call_later(0.0, self._retry)

    def _retry(self) -> None:
        self._is_retrying = False
        for session in list(self._waiting.values()):
            self._begin(session)
            if session.waiting:
                self._settle(session)
                return
            del self._waiting[session.put.put_id]
            if session.timer is not None:
                session.timer.cancel()
            session.why, session.retry_after_ms = "", None
            self._settle(session)
