"""Who may do what at the data port: daemons of the cluster everything, others what their capability opens.

A daemon proves that it knows the cluster's secret by answering a nonce. Without a secret, a process of the same
user (or root) on the same host is one.
"""

import hashlib
import hmac
import os
import secrets
import socket
from dataclasses import dataclass, field

from daemons.core.errors import ProtocolError
from daemons.transfer.capability import BadCapability, CapabilityKey, Operation
from daemons.transfer.transports import sockets, wire

_NONCE_BYTES = 16


@dataclass(slots=True)
class Peer:
    """What one connection has shown of itself."""

    is_daemon: bool = False
    nonce: bytes = b""
    pinned: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AccessRules:
    key: CapabilityKey
    secret: bytes | None
    requires_capability: bool

    def admit(self, sock: socket.socket) -> Peer:
        """A new connection; with a secret nobody is a daemon yet."""
        if self.secret is not None or sock.family != socket.AF_UNIX:
            return Peer()
        return Peer(is_daemon=sockets.peer_credentials(sock)[1] in (os.geteuid(), 0))

    def challenge(self, peer: Peer) -> bytes:
        peer.nonce = secrets.token_bytes(_NONCE_BYTES)
        return peer.nonce

    def accept_answer(self, peer: Peer, answer: bytes) -> bool:
        """A nonce is good for one try."""
        nonce, peer.nonce = peer.nonce, b""
        if self.secret is None:
            return True
        is_right = bool(nonce) and hmac.compare_digest(answer, answer_to(nonce, self.secret))
        peer.is_daemon = peer.is_daemon or is_right
        return is_right

    def check(self, peer: Peer, request: wire.Request, operation: Operation) -> None:
        """Raise BadCapability unless this peer may do it."""
        if peer.is_daemon or not (self.requires_capability or request.capability):
            return
        self.key.check(
            request.capability, request.region_id, operation, request.ranges, request.generation
        )

    def check_any(self, peer: Peer, request: wire.Request) -> None:
        """For messages: a capability for either operation on the region will do."""
        try:
            self.check(peer, request, "read")
        except BadCapability:
            self.check(peer, request, "write")


def answer_to(nonce: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, b"mooncake data port" + nonce, hashlib.sha256)


def authenticate(sock: socket.socket, epoch: int, secret: bytes) -> None:
    """The client's side, right after connect. Raises OSError or ProtocolError."""
    nonce = _exchange(sock, wire.Op.AUTH, epoch, b"", _NONCE_BYTES)
    _exchange(sock, wire.Op.AUTH, epoch, answer_to(nonce, secret), 0)


def give_name(sock: socket.socket, epoch: int) -> bytes:
    """Tell the peer a token for this connection, by which another one can end it. Raises as `authenticate`."""
    token = secrets.token_bytes(wire.TOKEN_BYTES)
    _exchange(sock, wire.Op.NAME, epoch, token, 0)
    return token


def _exchange(sock: socket.socket, op: wire.Op, epoch: int, body: bytes, length: int) -> bytes:
    sock.sendall(wire.encode_request(wire.Request(op, epoch, 0, body=body)))
    wanted = wire.REPLY.size + length
    frame = b""
    while len(frame) < wanted:
        part = sock.recv(wanted - len(frame))
        if not part:
            raise ConnectionResetError("the peer closed the connection")
        frame += part
        if len(frame) >= wire.REPLY.size:
            magic, status, _, _ = wire.REPLY.unpack_from(frame)
            if magic != wire.MAGIC or status != wire.Status.OK:
                raise ProtocolError(
                    "the peer does not accept this cluster's secret"
                    if op == wire.Op.AUTH
                    else "the peer refuses a name for the connection"
                )
    return frame[wire.REPLY.size :]
