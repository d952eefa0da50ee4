"""Connections that many threads share one at a time: each session has a loop of its own, turned by who borrowed it.

No thread waits for another one's loop, so that a round trip costs what it costs in a tool with one thread.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from daemons.client.channel_pool import ChannelPool
from daemons.core.errors import McError, ProtocolError, Unavailable
from daemons.protocol.address import address_of
from daemons.protocol.base import Message
from daemons.protocol.messages import Reply
from daemons.protocol.node import HelloReply
from daemons.rpc import Channel, Identity, Loop

_MAX_IDLE: Final = 16
_CONNECT_TIMEOUT_S: Final = 2.0
_RETRY_S: Final = 0.05

ReplyType = TypeVar("ReplyType", bound=Message)


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

    @contextmanager
    def borrow(self) -> Iterator["Session"]:
        with self._lock:
            if self._is_closed:
                raise Unavailable("this store is closed")
            session = self._idle.pop() if self._idle else None
        session = session or Session(self)
        try:
            yield session
        finally:
            with self._lock:
                is_kept = not self._is_closed and len(self._idle) < _MAX_IDLE
                if is_kept:
                    self._idle.append(session)
            if not is_kept:
                session.close()

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

    def ask_patiently(
        self, message: Message, reply_type: type[ReplyType], timeout_s: float
    ) -> ReplyType:
        """`ask_master`, again while it is Unavailable and there is time: for what may be asked twice."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.05, deadline_s - time.monotonic())
            try:
                return self.ask_master(message, reply_type, left_s)
            except Unavailable:
                if time.monotonic() + _RETRY_S >= deadline_s:
                    raise
            time.sleep(_RETRY_S)

    def ask_master(
        self, message: Message, reply_type: type[ReplyType], timeout_s: float
    ) -> ReplyType:
        """Raises the family of McError that it answered with, or Unavailable."""
        reply = self._call(self._master, message, timeout_s)
        if self._is_old_master:
            raise Unavailable(f"{self._shared.master} is an older master that a newer one replaced")
        if isinstance(reply, McError):
            raise reply
        if not isinstance(reply, reply_type):
            raise ProtocolError(
                f"{self._shared.master} answered {type(message).__name__} with {type(reply).__name__}; "
                "is it mc-master?"
            )
        return reply

    def ask_nodes(
        self, asked: Sequence[tuple[str, Message]], timeout_s: float
    ) -> list[Reply | McError]:
        """All at once; an answer or an error for each."""
        if len(asked) == 1:
            [(to, message)] = asked
            return [self._call(self._nodes.get(to), message, timeout_s)]
        return self._ask([(self._nodes.get(to), message) for to, message in asked], timeout_s)

    def close(self) -> None:
        self._master.close()
        self._nodes.close()
        self.loop.close()

    def _call(self, channel: Channel, message: Message, timeout_s: float) -> Reply | McError:
        try:
            return channel.call(message, timeout_s=timeout_s)
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
