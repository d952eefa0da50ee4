"""A connection to one server: requests with deadlines, streamed parts, notices, and knowing when the peer is gone.

A closed connection fails what is pending at once. A peer that keeps the connection but is silent (stopped, hung
host) is gone after `MISSED_BEATS` beats without a byte; beats are counted by our own timer, so a process that was
itself stopped does not blame its peers. After a loss the socket is made anew: nothing is ever sent twice.
"""

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import zmq
from zmq.utils.monitor import recv_monitor_message

from daemons.core.errors import Exhausted, McError, ProtocolError, Unavailable
from daemons.protocol.address import split_key
from daemons.protocol.base import MALFORMED, Message, Ping
from daemons.protocol.failure import Failure, Unwelcome, to_error
from daemons.protocol.messages import Notice, Part, Reply, decode_incoming, encode
from daemons.protocol.node import Hello, HelloReply
from daemons.rpc.dealer import AT_ONCE_S, MONITORED, NO_KEYS, keys_missing, new_dealer
from daemons.rpc.frames import await_message, has_more, receive, send_frames
from daemons.rpc.framing import Header, Kind, unpack_header
from daemons.rpc.loop import Loop, Timer

CONNECT_TIMEOUT_S = 0.75
BEAT_S = 0.5
MISSED_BEATS = 4
MAX_PENDING = 4096

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
    """Connects on first use and again after every loss. Loop thread only."""

    def __init__(
        self,
        loop: Loop,
        endpoint: str,
        on_notice: Callable[[Notice], object] | None = None,
        on_hello: Callable[[HelloReply], object] | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.loop = loop
        self.endpoint, self._server_key = split_key(endpoint)
        self.is_connected = False
        self.is_closed = False
        self.incarnation = 0
        """Sent with every request; whoever owns the channel to a master sets it."""
        self.last_used_s = loop.clock()
        self._on_notice = on_notice
        self._on_hello = on_hello
        self._connect_timeout_s = connect_timeout_s
        self._ids = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._outbox: deque[list[bytes]] = deque()
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._connect_timer: Timer | None = None
        self._beat_timer: Timer | None = None
        self._missed_beats = 0
        self._unproved_why = ""
        """Why the last handshake may have failed, where the library did not say."""

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
        if self._is_revoked:
            raise Unwelcome(f"the key of {self.endpoint} was revoked")
        if len(self._pending) >= MAX_PENDING:
            raise Exhausted(
                f"{MAX_PENDING} requests to {self.endpoint} are in flight", retry_after_ms=100
            )
        request_id = next(self._ids)
        pending = self._await_reply(request_id, timeout_s, on_reply, on_part)
        self.last_used_s = self.loop.clock()
        self._open()
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
        has_time = timeout_s >= AT_ONCE_S
        if not self.is_connected or self._pending or self._is_revoked or not has_time:
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
        if self._socket is None:
            return None
        try:
            frames = [part.bytes for part in await_message(self._socket)]
        except zmq.Again:
            return None
        try:
            header = unpack_header(frames[0])
            if header.kind is Kind.REPLY and header.request_id == request_id:
                reply = decode_incoming(frames[1])
                return to_error(reply) if isinstance(reply, Failure) else reply  # type: ignore[return-value]  # a reply by its kind
        except (ProtocolError, IndexError, *MALFORMED):
            pass  # told below, as by every turn
        self._on_frames(frames)
        return None

    def forget(self, request_id: int) -> bool:
        return self._pending.pop(request_id, None) is not None

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._drop_socket()
            self._fail_pending(Unavailable(f"the connection to {self.endpoint} was closed"))

    @property
    def _is_revoked(self) -> bool:
        identity = self.loop.identity
        if identity is None or self._server_key is None:
            return False
        return identity.allowed.revoked(self._server_key) is not None

    def _open(self) -> None:
        if self._socket is not None:
            return
        identity = self.loop.identity
        why_not = keys_missing(self.endpoint, identity, self._server_key)
        if why_not:
            self._lose_soon(why_not, Unwelcome)
            return
        socket = new_dealer(self.loop.context, identity, self._server_key)
        self._monitor = socket.get_monitor_socket(MONITORED)
        self._socket = socket
        self.loop.add_reader(self._monitor, self._on_monitor)
        self.loop.add_reader(socket, self._on_readable)
        try:
            socket.connect(self.endpoint)
        except zmq.ZMQError as error:
            self._lose_soon(f"cannot connect to {self.endpoint}: {zmq.strerror(error.errno or 0)}")
            return
        self._connect_timer = self.loop.call_later(
            self._connect_timeout_s, self._on_connect_timeout
        )

    def _send(self, request_id: int, message: Message, timeout_s: float) -> None:
        header = Header(
            Kind.REQUEST, request_id, int(min(timeout_s, 86_400) * 1000), self.incarnation
        )
        frames = [header.pack(), encode(message)]
        if self.is_connected:
            self._send_frames(frames)
        elif self._socket is not None:
            self._outbox.append(frames)

    def _send_frames(self, frames: list[bytes]) -> None:
        assert self._socket is not None, "connected without a socket"
        try:
            send_frames(self._socket, frames)
        except zmq.Again:
            self._lose_soon(f"{self.endpoint} is gone, or has stopped reading")

    def _on_monitor(self) -> None:
        monitor = self._monitor
        while monitor is not None and self._monitor is monitor:
            try:
                event = recv_monitor_message(monitor, zmq.NOBLOCK)["event"]
            except zmq.Again:
                return
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._on_connected()
            elif event == zmq.EVENT_DISCONNECTED:
                self.loop.guard(self._on_readable)  # what it said before it left still counts
                if self._monitor is not monitor:
                    return  # it said nonsense: that loss was dealt with, this is a new socket
                self._lose(f"{self.endpoint} closed the connection{self._unproved_why}")
            else:
                self._on_handshake_failed(event)

    def _on_handshake_failed(self, event: int) -> None:
        """The library gives up after the two that say something; the third may also be a server that ends."""
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._lose(
                f"{self.endpoint} does not let this process's key in: mcctl keys authorize at the master does",
                Unwelcome,
            )
        elif self._server_key is not None:
            self._unproved_why = "; is this its public key, and does it have keys?"
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self._lose(f"{self.endpoint} {NO_KEYS}", Unwelcome)
        else:
            self._unproved_why = " before a word was said; it may have ended, or ask for keys"

    def _on_connected(self) -> None:
        self.is_connected = True
        self._unproved_why = ""
        self._missed_beats = 0
        if self._connect_timer is not None:
            self._connect_timer.cancel()
        waiting, self._outbox = self._outbox, deque()
        timer = self.loop.call_later(CONNECT_TIMEOUT_S, lambda: None)
        request_id = next(self._ids)
        self._pending[request_id] = Pending(self, request_id, self._on_hello_reply, None, timer)
        self._send(request_id, Hello(), CONNECT_TIMEOUT_S)
        while waiting and self.is_connected:
            self._send_frames(waiting.popleft())

    def _on_hello_reply(self, reply: Reply | McError) -> None:
        if isinstance(reply, HelloReply) and self._on_hello is not None:
            self._on_hello(reply)
        elif isinstance(reply, ProtocolError):
            self._lose(reply.message, ProtocolError)

    def _on_connect_timeout(self) -> None:
        if not self.is_connected:
            self._lose(f"{self.endpoint} does not answer; is it running?{self._unproved_why}")

    def _on_readable(self) -> None:
        while self._socket is not None and has_more(self._socket):
            try:
                frames = [part.bytes for part in receive(self._socket)]
            except zmq.Again:
                return
            self._missed_beats = 0
            if self._is_revoked:
                self._lose(f"the key of {self.endpoint} was revoked", Unwelcome)
                return
            self._on_frames(frames)

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            header = unpack_header(frames[0])
            message = decode_incoming(frames[1])
        except (ProtocolError, IndexError, *MALFORMED) as error:
            self._lose(f"{self.endpoint} sent a malformed message: {error}", ProtocolError)
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
            self._lose(f"{self.endpoint} has not answered {MISSED_BEATS} beats of {BEAT_S} s")
        elif self._missed_beats > 1:
            self._send(0, Ping(), BEAT_S * MISSED_BEATS)

    def _expire(self, request_id: int, timeout_s: float) -> None:
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            pending.on_reply(
                Unavailable(f"{self.endpoint} did not answer within {timeout_s:.2g} s")
            )

    def _lose(self, why: str, family: type[McError] = Unavailable) -> None:
        self._drop_socket()
        self._fail_pending(family(why))

    def _lose_soon(self, why: str, family: type[McError] = Unavailable) -> None:
        """Found in the middle of `request`: whoever asks must not hear of it before it returns."""
        self._drop_socket()
        self.loop.call_later(0.0, self._fail_these, list(self._pending), family(why))

    def _fail_these(self, request_ids: list[int], error: McError) -> None:
        for request_id in request_ids:
            request = self._pending.pop(request_id, None)
            if request is not None:
                request.timer.cancel()
                self.loop.guard(partial(request.on_reply, error))

    def _drop_socket(self) -> None:
        self.is_connected = False
        self._outbox.clear()
        if self._connect_timer is not None:
            self._connect_timer.cancel()
        socket, monitor = self._socket, self._monitor
        self._socket = self._monitor = None
        if socket is not None and monitor is not None:
            self.loop.remove_reader(monitor)
            self.loop.remove_reader(socket)
            # In this order: the library says goodbye on the monitor, and waits for ever on one that is closed.
            socket.disable_monitor()
            monitor.close(0)
            socket.close()

    def _fail_pending(self, error: McError) -> None:
        self._fail_these(list(self._pending), error)


def _ignore(_: Reply | McError) -> None:
    return
