"""A ROUTER socket that decodes requests and hands them to one handler, in the loop's thread.

Whatever arrives, the server lives: bytes that are no request are answered with ProtocolError where they can be,
dropped otherwise, and counted. Hello and Ping are answered here. Replies to a peer that left are dropped.
"""

import logging
from collections.abc import Callable

import zmq

from daemons.core.errors import ConfigError, McError, ProtocolError, Unavailable
from daemons.core.ids import short
from daemons.protocol.address import with_key
from daemons.protocol.base import MALFORMED, PROTOCOL_VERSION, Message, Ok, Ping
from daemons.protocol.failure import Unwelcome, to_failure
from daemons.protocol.key import AllowedKey
from daemons.protocol.messages import Request, decode_request, encode
from daemons.protocol.node import Hello, HelloReply
from daemons.rpc.authenticator import CONTROL, Authenticator, HandshakeWatch
from daemons.rpc.frames import has_more, receive_routed
from daemons.rpc.framing import MAX_MESSAGE_BYTES, Header, Kind, unpack_header
from daemons.rpc.gate import Gate
from daemons.rpc.loop import Loop
from daemons.rpc.outbox import Outbox

log = logging.getLogger(__name__)

_WAY_S, _WAY_SHARE, _LONGEST_WAY_S = 0.05, 0.2, 1.0
"""What of a request's time is left for its answer's way: a fifth, within bounds."""
_MAX_BATCH = 256
"""Requests handled before the loop looks at its timers and other sockets again."""


class Call:
    """One request being served. Loop thread only. Exactly one of `reply` and `fail` ends it; `part` streams before."""

    __slots__ = (
        "_request_id",
        "_server",
        "answer_by_s",
        "deadline_s",
        "incarnation",
        "is_done",
        "message",
        "on_gone",
        "owner",
        "peer",
    )

    def __init__(
        self,
        server: "Server",
        peer: bytes,
        header: Header,
        message: Request,
        owner: AllowedKey | None = None,
    ) -> None:
        self._server = server
        self._request_id = header.request_id
        self.peer = peer
        self.message = message
        self.owner = owner
        """Of the key that it came with; None where there are no keys."""
        given_s = header.deadline_ms / 1000
        self.deadline_s = server.loop.clock() + given_s
        self.answer_by_s = self.deadline_s - min(_LONGEST_WAY_S, max(_WAY_S, _WAY_SHARE * given_s))
        """So that what is said at the last moment still arrives before the asker gives up."""
        self.incarnation = header.incarnation
        self.is_done = False
        self.on_gone: Callable[[], object] | None = None
        """Called once when the peer turns out to be gone (a send to it failed)."""

    @property
    def has_followers(self) -> bool:
        """More requests wait, so the answer may too, until the server's `on_drained`."""
        return self._server.is_draining

    def reply(self, message: Message) -> None:
        if not self.is_done:
            self.is_done = True
            self._send(Kind.REPLY, message)

    def fail(self, error: McError) -> None:
        self.reply(to_failure(error))

    def part(self, message: Message) -> None:
        if not self.is_done:
            self._send(Kind.PART, message)

    def _send(self, kind: Kind, message: Message) -> None:
        header = Header(kind, self._request_id)
        # Who wants to hear that the peer is gone has to hear it now.
        may_hold = self.is_done and self.on_gone is None
        if not self._server.send(self.peer, header, message, may_hold=may_hold):
            self.is_done = True
            if self.on_gone is not None:
                gone, self.on_gone = self.on_gone, None
                gone()


class Server:
    """Binds at once; `endpoint` names the real port. Raises ConfigError when the address is taken or wrong."""

    def __init__(
        self,
        loop: Loop,
        bind: str,
        hello: Callable[[], HelloReply],
        handle: Callable[[Call], object],
    ) -> None:
        self.loop = loop
        self.num_malformed = 0
        self.num_stale = 0
        self.on_drained: Callable[[], object] = lambda: None
        """Called when all that waited was handed on."""
        self._hello = hello
        self._handle = handle
        self._socket = loop.context.socket(zmq.ROUTER)
        self._outbox = Outbox(self._socket, loop.clock)
        self._gate: Gate | None = None
        self._watch: HandshakeWatch | None = None
        if loop.authenticator is not None:
            self._secure(loop.authenticator)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, 20_000)
        self._socket.setsockopt(zmq.RCVHWM, 20_000)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 10)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 5)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
        try:
            self._socket.bind(bind)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"cannot listen on {bind}: {zmq.strerror(error.errno or 0)}; "
                "choose another address under `node.listen`, or stop what uses it"
            ) from None
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        identity = loop.identity
        self.told = with_key(self.endpoint, identity.pair.public if identity else None)
        """What peers must know to connect: the endpoint, and whom to expect there."""
        loop.add_reader(self._socket, self._on_readable)

    @property
    def is_draining(self) -> bool:
        """More requests wait behind the one that is being served."""
        return self._outbox.is_holding

    @property
    def num_undeliverable(self) -> int:
        """Messages to peers that were gone, or not to be talked to."""
        return self._outbox.num_undeliverable

    @property
    def num_refused(self) -> int:
        """Connections and messages of this loop's servers that were refused for their keys."""
        return self.loop.authenticator.refusals.num_refused if self.loop.authenticator else 0

    def close(self) -> None:
        self.loop.remove_reader(self._socket)
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._socket.close()

    def knows(self, peer: bytes) -> bool:
        """Whether this connection (a `Call.peer`) may be talked to: always, where there are no keys."""
        return self._gate is None or self._gate.may_hear(peer)

    def owner(self, peer: bytes) -> AllowedKey | None:
        """Of the key that this connection proved, while that is let in."""
        return self._gate.owner(peer) if self._gate is not None else None

    def notify(self, peer: bytes, message: Message) -> bool:
        """Push a notice to a connected peer (its `Call.peer`); False when it is gone."""
        return self.send(peer, Header(Kind.NOTICE, 0), message)

    def send(
        self, peer: bytes, header: Header, message: Message, *, may_hold: bool = False
    ) -> bool:
        """False for a peer that is gone; of what is held a moment with the answers to others nobody hears that."""
        if self._gate is not None and not self._gate.may_hear(peer):
            self._outbox.num_undeliverable += 1
            return False
        frames = peer, header.pack(), encode(message)
        if may_hold and self._outbox.is_holding:
            self._outbox.hold(frames)
            return True
        return self._outbox.send(frames)

    def _on_readable(self) -> None:
        # After a stall all that is queued is judged by the stall, so all of it is read in this turn.
        num_left = _MAX_BATCH if not self.loop.stalled_s else 100 * _MAX_BATCH
        outbox, is_waiting = self._outbox, True
        try:
            while is_waiting and num_left:
                num_left -= 1
                try:
                    peer, parts = receive_routed(self._socket)
                except zmq.Again:
                    return
                is_waiting = outbox.is_holding = has_more(self._socket)
                key = "" if self._gate is None else _key_of(parts)
                self._on_frames(peer, [part.bytes for part in parts], key)
        finally:
            outbox.is_holding = False
            outbox.flush()
            self.on_drained()

    def _secure(self, authenticator: Authenticator) -> None:
        authenticator.secure(self._socket, CONTROL)
        self._gate = Gate(authenticator.identity.allowed, authenticator.refusals)
        self._watch = HandshakeWatch(self.loop, self._socket, authenticator.refusals)

    def _on_frames(self, peer: bytes, frames: list[bytes], key: str) -> None:
        try:
            header = unpack_header(frames[0] if len(frames) == 2 else b"")
        except ProtocolError:
            self.num_malformed += 1
            return
        try:
            message, owner = self._admit(peer, key, header, frames[1])
        except Unwelcome as error:
            # Also to a key that was revoked: that much it may know.
            failure = encode(to_failure(error))
            self._outbox.send((peer, Header(Kind.REPLY, header.request_id).pack(), failure))
            return
        except ProtocolError as error:
            self.num_malformed += 1
            self.send(peer, Header(Kind.REPLY, header.request_id), to_failure(error))
            return
        call = Call(self, peer, header, message, owner)
        if self.loop.stalled_s * 1000 > header.deadline_ms:
            # It waited while this process was stopped: whoever sent it has given up.
            self.num_stale += 1
            call.fail(
                Unavailable(
                    "the request waited longer than its deadline while this process was stopped"
                )
            )
            return
        self._dispatch(call)

    def _admit(
        self, peer: bytes, key: str, header: Header, payload: bytes
    ) -> tuple[Request, AllowedKey | None]:
        """Raises Unwelcome for a message that this key may not send, and ProtocolError for what is none."""
        if self._gate is None:
            return _decode(header, payload), None
        owner = self._gate.meet(peer, key)
        if owner is None:
            raise Unwelcome(
                f"the key {short(key)} is not authorized any more; mcctl keys authorize at the master lets it in"
            )
        message = _decode(header, payload)
        why = self._gate.refusal(message, owner)
        if why is not None:
            raise Unwelcome(why)
        return message, owner

    def _dispatch(self, call: Call) -> None:
        match call.message:
            case Ping():
                call.reply(Ok())
            case Hello():
                call.reply(self._hello())
            case _:
                try:
                    self._handle(call)
                except McError as error:
                    call.fail(error)
                except Exception as error:
                    self.loop.num_errors += 1
                    log.exception("handler failed op=%s", type(call.message).__name__)
                    call.fail(
                        McError(
                            f"internal error: {type(error).__name__}; see the log of this daemon"
                        )
                    )


def _key_of(parts: list[zmq.Frame]) -> str:
    """What the handshake proved; nothing at all for a connection that had none."""
    try:
        return str(parts[-1].get("User-Id"))
    except zmq.ZMQError:
        return ""


def _decode(header: Header, payload: bytes) -> Request:
    if header.version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"peer speaks protocol {header.version}, this daemon {PROTOCOL_VERSION}; install the same release on both"
        )
    if header.kind is not Kind.REQUEST:
        raise ProtocolError(f"a {header.kind.name} was sent to a server")
    try:
        return decode_request(payload)
    except MALFORMED as error:
        raise ProtocolError(f"request is malformed: {error}") from None
