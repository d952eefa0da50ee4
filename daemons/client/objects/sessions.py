"""Connections that many threads share one at a time: each session has a loop of its own, turned by who borrowed it.

No thread waits for another one's loop, so that a round trip costs what it costs in a tool with one thread.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from daemons.client.channel_pool import ChannelPool
from daemons.client.objects.steps import AskMaster, AskNodes, Closed, Result, Steps, Work
from daemons.core.errors import McError, Unavailable
from daemons.protocol.address import address_of
from daemons.protocol.base import Message
from daemons.protocol.messages import Reply
from daemons.protocol.node import HelloReply
from daemons.rpc import Channel, Identity, Loop

_MAX_IDLE: Final = 16
_CONNECT_TIMEOUT_S: Final = 2.0
_QUESTIONS: Final = (AskMaster, AskNodes)


class Sessions:
    """Thread safe. As many sessions as were ever borrowed at one time, of which _MAX_IDLE are kept."""

    def __init__(self, master: str, identity: Identity | None = None) -> None:
        self.master = address_of(master)
        self.endpoint = master
        self.identity = identity
        self.incarnation = 0
        """The highest that this process has met: an older master that wakes up is not believed."""
        self._idle: list[Session] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def run(self, steps: Steps[Result]) -> Result:
        """Carry them out on this thread. What goes wrong is theirs to hear of first, an interrupt too."""
        session: Session | None = None
        try:
            step = next(steps)
            while True:
                try:
                    outcome: object
                    if isinstance(step, _QUESTIONS):
                        session = session or self._take()
                        outcome = session.do(step)
                    elif isinstance(step, Work):
                        outcome = step.call()
                    else:
                        outcome = None
                        time.sleep(step.seconds)
                except BaseException as error:  # noqa: BLE001  # thrown in, and out again by the steps
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            if session is not None:
                self._give_back(session)

    def _take(self) -> "Session":
        with self._lock:
            if self._is_closed:
                raise Closed("this store is closed")
            session = self._idle.pop() if self._idle else None
        return session or Session(self)

    def _give_back(self, session: "Session") -> None:
        with self._lock:
            is_kept = not self._is_closed and len(self._idle) < _MAX_IDLE
            if is_kept:
                self._idle.append(session)
        if not is_kept:
            session.close()

    def old_master(self) -> Unavailable:
        return Unavailable(f"{self.master} is an older master that a newer one replaced")

    def close(self) -> None:
        """Those that are borrowed close when they are given back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()


class Session:
    """One borrower at a time."""

    def __init__(self, shared: Sessions) -> None:
        self._shared = shared
        self.loop = Loop(identity=shared.identity)
        self._is_old_master = False
        self._master = Channel(
            self.loop,
            shared.endpoint,
            on_hello=self._on_hello,
            connect_timeout_s=_CONNECT_TIMEOUT_S,
        )
        self._nodes = ChannelPool(self.loop)

    def do(self, step: AskMaster | AskNodes) -> Reply | McError | list[Reply | McError]:
        """Without raising what was answered."""
        if isinstance(step, AskMaster):
            reply = self._call(self._master, step.message, step.timeout_s, step.meanwhile)
            return self._shared.old_master() if self._is_old_master else reply
        if len(step.asked) == 1:
            [(to, message)] = step.asked
            return [self._call(self._nodes.get(to), message, step.timeout_s)]
        channels = [(self._nodes.get(to), message) for to, message in step.asked]
        return self._ask(channels, step.timeout_s)

    def close(self) -> None:
        self._master.close()
        self._nodes.close()
        self.loop.close()

    def _call(
        self,
        channel: Channel,
        message: Message,
        timeout_s: float,
        meanwhile: Callable[[], object] | None = None,
    ) -> Reply | McError:
        try:
            return channel.call(message, timeout_s=timeout_s, meanwhile=meanwhile)
        except McError as error:
            return error

    def _ask(
        self, asked: Sequence[tuple[Channel, Message]], timeout_s: float
    ) -> list[Reply | McError]:
        self.loop.run_once(0.0)  # hear now of a loss that happened while nobody turned the loop
        replies: dict[int, Reply | McError] = {}
        pending = []
        for index, (channel, message) in enumerate(asked):
            try:
                pending.append(
                    channel.request(
                        message,
                        timeout_s=timeout_s,
                        on_reply=lambda reply, index=index: replies.setdefault(index, reply),  # type: ignore[misc]
                    )
                )
            except McError as error:
                replies[index] = error
        try:
            self.loop.run_until(lambda: len(replies) == len(asked), timeout_s + 1)
        finally:
            for each in pending:
                each.cancel()
        late = Unavailable(f"no answer within {timeout_s:g} s")
        return [replies.get(index, late) for index in range(len(asked))]

    def _on_hello(self, reply: HelloReply) -> None:
        shared = self._shared
        self._is_old_master = reply.incarnation < shared.incarnation
        shared.incarnation = max(shared.incarnation, reply.incarnation)
        self._master.incarnation = shared.incarnation
