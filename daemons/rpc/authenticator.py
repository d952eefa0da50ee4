"""The handshake of servers with keys: ZeroMQ asks here (ZAP, RFC 27) whether a client's key is on the list.

Nobody without such a key gets as far as a message. One for each loop, since ZeroMQ asks within its context.
"""

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final, Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from daemons.core.clock import Clock
from daemons.core.ids import short
from daemons.protocol.access import EVENT_READERS
from daemons.protocol.key import AllowedKey
from daemons.rpc.gate import RefusalLog
from daemons.rpc.keys import Identity

CONTROL: Final = b"control"
EVENTS: Final = b"events"
_ENDPOINT: Final = "inproc://zeromq.zap.01"
_HANDSHAKE_MS: Final = 5000
_MAX_OPEN: Final = 65_536
_EVENTS: Final = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_DISCONNECTED
)


class Turns(Protocol):
    """What is asked of the loop."""

    clock: Clock
    context: "zmq.Context[zmq.Socket[bytes]]"

    def add_reader(self, socket: "zmq.Socket[bytes]", on_readable: Callable[[], object]) -> None:
        """Call it while the socket has something."""

    def remove_reader(self, socket: "zmq.Socket[bytes]") -> None:
        """No more."""

    def call_later(self, delay_s: float, callback: Callable[..., object]) -> object:
        """After this turn's readers."""


class Authenticator:
    """Loop thread only. The loop's context closes the socket."""

    def __init__(self, loop: Turns, identity: Identity) -> None:
        self._loop = loop
        self.identity = identity
        self.refusals = RefusalLog()
        self._socket = loop.context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ENDPOINT)
        loop.add_reader(self._socket, self._on_readable)

    def secure(self, server: "zmq.Socket[bytes]", domain: bytes) -> None:
        """Before it is bound."""
        server.setsockopt(zmq.CURVE_SERVER, 1)
        server.setsockopt(zmq.CURVE_SECRETKEY, self.identity.pair.secret)
        server.setsockopt(zmq.ZAP_DOMAIN, domain)
        server.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)

    def _on_readable(self) -> None:
        # After this turn's other readers: one of them may bring the list with this very key.
        self._loop.remove_reader(self._socket)
        self._loop.call_later(0.0, self._answer)

    def _answer(self) -> None:
        self._loop.add_reader(self._socket, self._on_readable)
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        request_id, domain, address = frames[1], frames[2], frames[3].decode(errors="replace")
        key = frames[6].hex() if len(frames) == 7 and frames[5] == b"CURVE" else ""
        owner = self.identity.allowed.find(key)
        why = _why_not(owner, domain)
        if why:
            was = owner or self.identity.allowed.revoked(key)
            name = was.node if was is not None else "unknown"
            self.refusals.add(
                "refused from=%s key=%s node=%s why=%r", address, short(key), name, why
            )
        status, user = (b"400", b"") if why else (b"200", key.encode())
        self._socket.send_multipart([b"1.0", request_id, status, why.encode(), user, b""])


def _why_not(owner: AllowedKey | None, domain: bytes) -> str:
    if owner is None:
        return "not authorized"
    if domain == EVENTS and owner.role not in EVENT_READERS:
        return f"events are not for a {owner.role}"
    return ""


class HandshakeWatch:
    """Counts and logs those who did not even show a key. `close` it before its socket."""

    def __init__(self, loop: Turns, server: "zmq.Socket[bytes]", refusals: RefusalLog) -> None:
        self._loop = loop
        self._server = server
        self._refusals = refusals
        self._addresses: dict[int, str] = {}
        """By open connection."""
        self._has_failed = False
        self._monitor = server.get_monitor_socket(_EVENTS)
        loop.add_reader(self._monitor, self._on_readable)

    def close(self) -> None:
        self._loop.remove_reader(self._monitor)
        # In this order: the library says goodbye on the monitor, and waits for ever on one that is closed.
        self._server.disable_monitor()
        self._monitor.close(0)

    def _on_readable(self) -> None:
        while True:
            try:
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_event(event["event"], event["value"])

    def _on_event(self, kind: int, value: int) -> None:
        if kind == zmq.EVENT_ACCEPTED:
            if len(self._addresses) < _MAX_OPEN:
                self._addresses[value] = _peer_of(value)
        elif kind == zmq.EVENT_DISCONNECTED:
            # Comes right after a failure, and says of which connection it was.
            address = self._addresses.pop(value, "?")
            if self._has_failed:
                self._has_failed = False
                self._refusals.add("refused from=%s why='no keys, or not for this server'", address)
        else:
            self._has_failed = True


def _peer_of(descriptor: int) -> str:
    """For the log only; ? for one that is gone by now, as those that fail at once often are."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        return str(connection.getpeername()[0])
    return "?"
