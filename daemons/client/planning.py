"""Asking the master for plans, a bounded number at a time.

The rest of a burst waits here, in order: the time the master has for a plan begins when it is asked, so that many
requests at once are slow at worst and never mistaken for a master that is silent. Loop thread only.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from daemons.core.errors import Exhausted, McError, Unavailable
from daemons.protocol.messages import Reply
from daemons.protocol.request import Schedule
from daemons.rpc import Channel, Pending, Timer

MAX_IN_FLIGHT: Final = 32
MAX_WAITING: Final = 4096
RETRY_AFTER_MS: Final = 1000

OnReply = Callable[[Reply | McError], object]


class Question:
    """One plan that was asked for. `cancel` forgets it: no callback comes any more."""

    __slots__ = ("_planner", "message", "on_reply", "pending", "timer")

    def __init__(self, planner: "Planner", message: Schedule, on_reply: OnReply) -> None:
        self._planner = planner
        self.message = message
        self.on_reply = on_reply
        self.pending: Pending | None = None
        self.timer: Timer | None = None
        """Ends it when the request's own time does, wherever it is by then."""

    def cancel(self) -> None:
        self._planner.forget(self)

    def end(self, reply: Reply | McError) -> None:
        """Tell whoever asked; nothing comes after it."""
        if self.timer is not None:
            self.timer.cancel()
        self.on_reply(reply)


class Planner:
    """`timeout_s`: how long the master may take for one plan."""

    def __init__(
        self,
        master: Channel,
        timeout_s: float,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._master = master
        self._timeout_s = timeout_s
        self._max_in_flight = max_in_flight
        self._max_waiting = max_waiting
        self._waiting: deque[Question] = deque()
        self._asked: set[Question] = set()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def ask(self, message: Schedule, *, left_s: float, on_reply: OnReply) -> Question:
        """Exactly one `on_reply`, after this has returned, within `left_s`. Raises Exhausted when too many wait."""
        if len(self._waiting) >= self._max_waiting:
            raise Exhausted(
                f"{self._max_waiting} requests wait for the master's plan; try again later",
                retry_after_ms=RETRY_AFTER_MS,
            )
        question = Question(self, message, on_reply)
        question.timer = self._master.loop.call_later(left_s, self._expire, question)
        self._waiting.append(question)
        self._send_waiting()
        return question

    def forget(self, question: Question) -> None:
        if question.timer is not None:
            question.timer.cancel()
        if question in self._asked:
            self._asked.remove(question)
            if question.pending is not None:
                question.pending.cancel()
            self._send_waiting()
        elif question in self._waiting:
            self._waiting.remove(question)

    def _send_waiting(self) -> None:
        while self._waiting and len(self._asked) < self._max_in_flight:
            question = self._waiting.popleft()
            self._asked.add(question)
            try:
                question.pending = self._master.request(
                    question.message,
                    timeout_s=self._timeout_s,
                    on_reply=partial(self._on_reply, question),
                )
            except McError as error:
                self._master.loop.call_later(0.0, self._on_reply, question, error)

    def _on_reply(self, question: Question, reply: Reply | McError) -> None:
        if question not in self._asked:
            return
        self._asked.remove(question)
        question.end(reply)
        if isinstance(reply, Unavailable) and not self._master.is_connected:
            # The master is gone. Those that wait would each find it out for themselves, one after another.
            waiting, self._waiting = self._waiting, deque()
            for other in waiting:
                other.end(reply)
        self._send_waiting()

    def _expire(self, question: Question) -> None:
        self.forget(question)
        question.end(Unavailable("the request's time ended before it had a plan"))
