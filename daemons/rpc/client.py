"""Requests to one server, with deadlines; streamed parts, notices, and knowing when the peer is gone.

A closed connection fails what is pending at once. A peer that keeps the connection but is silent (stopped, hung
host) is gone after `MISSED_BEATS` beats without a byte; beats are counted by our own timer, so a process that was
itself stopped does not blame its peers. After a loss the socket is made anew: nothing is ever sent twice.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from daemons.core.errors import Exhausted, McError, ProtocolError, Unavailable
from daemons.core.units import format_duration
from daemons.protocol.base import MALFORMED, Message, Ping
from daemons.protocol.failure import Failure, Unwelcome, to_error
from daemons.protocol.messages import Notice, Part, Reply, decode_incoming, encode
from daemons.protocol.node import Hello, HelloReply
from daemons.rpc.connection import AT_ONCE_S, Connection
from daemons.rpc.framing import Kind, pack_header, unpack_header
from daemons.rpc.loop import Loop, Timer

CONNECT_TIMEOUT_S = 0.75
BEAT_S = 0.5
MISSED_BEATS = 4
_LEAST_S = 0.001
MAX_PENDING = 4096
_MAX_DEADLINE_S = 86_400

OnReply = Callable[[Reply | McError], object]
OnPart = Callable[[Part], object]


@dataclass(slots=True)
class Pending:
    """A request in flight. `cancel` forgets it: no callback comes any more (the server is not told)."""

    channel: "Channel"
    request_id: int
    on_reply: OnReply
    on_part: OnPart | None
    timer: Timer

    def cancel(self) -> None:
        if self.channel.forget(self.request_id):
            self.timer.cancel()


class Channel:
    """Connects on first use and again after every loss. Loop thread only.

    `connect_timeout_s` is for whoever has nowhere else to go: so long a peer that is not there yet is waited for. For
    others it is gone as soon as it refuses, or is silent for `CONNECT_TIMEOUT_S`.
    """

    def __init__(
        self,
        loop: Loop,
        endpoint: str,
        on_notice: Callable[[Notice], object] | None = None,
        on_hello: Callable[[HelloReply], object] | None = None,
        connect_timeout_s: float | None = None,
    ) -> None:
        self.loop = loop
        self._connection = Connection(
            loop,
            endpoint,
            self,
            CONNECT_TIMEOUT_S if connect_timeout_s is None else connect_timeout_s,
            is_patient=connect_timeout_s is not None,
        )
        self.endpoint = self._connection.endpoint
        self.is_closed = False
        self.incarnation = 0
        """Sent with every request; whoever owns the channel to a master sets it."""
        self.last_used_s = loop.clock()
        self._on_notice = on_notice
        self._on_hello = on_hello
        self._ids = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._beat_timer: Timer | None = None
        self._missed_beats = 0

    @property
    def is_connected(self) -> bool:
        """The handshake succeeded, and no loss was heard of since."""
        return self._connection.is_up

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def request(
        self,
        message: Message,
        *,
        timeout_s: float,
        on_reply: OnReply,
        on_part: OnPart | None = None,
    ) -> Pending:
        """Exactly one `on_reply`, with the reply or a McError, at the latest after `timeout_s`; parts come before it.

        Raises Exhausted when MAX_PENDING requests are in flight.
        """
        if self.is_closed:
            raise Unavailable(f"the connection to {self.endpoint} was closed")
        if self._connection.is_revoked:
            raise Unwelcome(f"the key of {self.endpoint} was revoked")
        if len(self._pending) >= MAX_PENDING:
            raise Exhausted(
                f"{MAX_PENDING} requests to {self.endpoint} are in flight", retry_after_ms=100
            )
        request_id = next(self._ids)
        pending = self._await_reply(request_id, timeout_s, on_reply, on_part)
        self.last_used_s = self.loop.clock()
        self._connection.open()
        self._send(request_id, message, timeout_s)
        return pending

    def call(
        self,
        message: Message,
        *,
        timeout_s: float,
        meanwhile: Callable[[], object] | None = None,
    ) -> Reply | McError:
        """Turn the loop until the answer is there, for whoever has nothing else to do than `meanwhile`, once.

        An answer that comes at once needs no timer, no callback and no turn: half the cost of a round trip.
        """
        loop = self.loop
        loop.catch_up()  # hear now of a loss that happened while nobody turned the loop
        connection = self._connection
        is_quiet = connection.is_up and not self._pending and timeout_s >= AT_ONCE_S
        if not is_quiet or connection.is_revoked:
            return self._call_in_turns(message, timeout_s, meanwhile)
        request_id = next(self._ids)
        self.last_used_s = started_s = loop.clock()
        self._send(request_id, message, timeout_s)
        if meanwhile is not None:
            meanwhile()
        answer = self._answer_at_once(request_id)
        if answer is not None:
            return answer
        got: list[Reply | McError] = []
        left_s = max(0.0, timeout_s - (loop.clock() - started_s))
        pending = self._await_reply(request_id, left_s, got.append)
        if not self.is_connected:
            self._fail_these([request_id], Unavailable(f"{self.endpoint} is gone"))
        return self._turn_until(pending, got, timeout_s)

    def _call_in_turns(
        self, message: Message, timeout_s: float, meanwhile: Callable[[], object] | None
    ) -> Reply | McError:
        got: list[Reply | McError] = []
        pending = self.request(message, timeout_s=timeout_s, on_reply=got.append)
        if meanwhile is not None:
            meanwhile()
        return self._turn_until(pending, got, timeout_s)

    def _turn_until(
        self, pending: Pending, got: list[Reply | McError], timeout_s: float
    ) -> Reply | McError:
        try:
            self.loop.run_until(lambda: bool(got), timeout_s + 1)
        finally:
            pending.cancel()
        return got[0] if got else Unavailable(f"no answer within {timeout_s:g} s")

    def post(self, message: Message, *, timeout_s: float = 5.0) -> None:
        """A request whose outcome nobody waits for (Cancel, Pulled, RequestDone)."""
        if not self.is_closed and len(self._pending) < MAX_PENDING:
            self.request(message, timeout_s=timeout_s, on_reply=_ignore)

    def _await_reply(
        self, request_id: int, timeout_s: float, on_reply: OnReply, on_part: OnPart | None = None
    ) -> Pending:
        timer = self.loop.call_later(timeout_s, self._expire, request_id, timeout_s)
        pending = Pending(self, request_id, on_reply, on_part, timer)
        self._pending[request_id] = pending
        if self._beat_timer is None:
            self._missed_beats = 0
            self._beat_timer = self.loop.every(BEAT_S, self._beat)
        return pending

    def _answer_at_once(self, request_id: int) -> Reply | McError | None:
        """None: not there within AT_ONCE_S, in which nothing but this socket is heard."""
        frames = self._connection.await_frames()
        if frames is None:
            return None
        try:
            header = unpack_header(frames[0])
            if header.kind is Kind.REPLY and header.request_id == request_id:
                reply = decode_incoming(frames[1])
                return to_error(reply) if isinstance(reply, Failure) else reply  # type: ignore[return-value]  # a reply by its kind
        except (ProtocolError, IndexError, *MALFORMED):
            pass  # told below, as by every turn
        self.on_frames(frames)
        return None

    def forget(self, request_id: int) -> bool:
        return self._pending.pop(request_id, None) is not None

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._connection.drop()
            self.on_lost(Unavailable(f"the connection to {self.endpoint} was closed"))

    def _send(self, request_id: int, message: Message, timeout_s: float) -> None:
        deadline_ms = int(min(timeout_s, _MAX_DEADLINE_S) * 1000)
        header = pack_header(Kind.REQUEST, request_id, deadline_ms, self.incarnation)
        self._connection.send([header, encode(message)])

    # -- what the connection says ----------------------------------------------------------------------------------

    def on_connected(self) -> None:
        """Hello goes first."""
        self._missed_beats = 0
        timer = self.loop.call_later(CONNECT_TIMEOUT_S, lambda: None)
        request_id = next(self._ids)
        self._pending[request_id] = Pending(self, request_id, self._on_hello_reply, None, timer)
        self._send(request_id, Hello(), CONNECT_TIMEOUT_S)

    def on_frames(self, frames: list[bytes]) -> None:
        """An answer, a part of one, or a notice; what is none of them ends the connection."""
        self._missed_beats = 0
        try:
            header = unpack_header(frames[0])
            message = decode_incoming(frames[1])
        except (ProtocolError, IndexError, *MALFORMED) as error:
            self._connection.lose(
                ProtocolError(f"{self.endpoint} sent a malformed message: {error}")
            )
            return
        if header.kind is Kind.NOTICE:
            if self._on_notice is not None:
                self._on_notice(message)  # type: ignore[arg-type]  # a notice by its kind
        elif header.kind is Kind.PART:
            pending = self._pending.get(header.request_id)
            if pending is not None and pending.on_part is not None:
                pending.on_part(message)  # type: ignore[arg-type]  # a part by its kind
        else:
            pending = self._pending.pop(header.request_id, None)
            if pending is not None:
                pending.timer.cancel()
                failed = isinstance(message, Failure)
                pending.on_reply(to_error(message) if failed else message)  # type: ignore[arg-type]

    def on_lost(self, error: McError) -> None:
        """All that is pending fails."""
        self._fail_these(list(self._pending), error)

    def on_lost_soon(self, error: McError) -> None:
        """As `on_lost`, at the loop's next turn."""
        self.loop.call_later(0.0, self._fail_these, list(self._pending), error)

    def _on_hello_reply(self, reply: Reply | McError) -> None:
        if isinstance(reply, HelloReply) and self._on_hello is not None:
            self._on_hello(reply)
        elif isinstance(reply, ProtocolError):
            self._connection.lose(ProtocolError(reply.message))

    def _beat(self) -> None:
        if not self._pending:
            if self._beat_timer is not None:
                self._beat_timer.cancel()
                self._beat_timer = None
            return
        if not self.is_connected:
            return
        self._missed_beats += 1
        if self._missed_beats > MISSED_BEATS:
            self._connection.lose(
                Unavailable(f"{self.endpoint} has not answered {MISSED_BEATS} beats of {BEAT_S} s")
            )
        elif self._missed_beats > 1:
            self._send(0, Ping(), BEAT_S * MISSED_BEATS)

    def _expire(self, request_id: int, timeout_s: float) -> None:
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            late = f"did not answer within {format_duration(timeout_s)}"
            if timeout_s < _LEAST_S:
                late = "could not be asked: no time was left"
            pending.on_reply(Unavailable(f"{self.endpoint} {late}"))

    def _fail_these(self, request_ids: list[int], error: McError) -> None:
        for request_id in request_ids:
            request = self._pending.pop(request_id, None)
            if request is not None:
                request.timer.cancel()
                self.loop.guard(partial(request.on_reply, error))


def _ignore(_: Reply | McError) -> None:
    return
