"""Who may do what at the data port: daemons of the cluster everything, others what their capability opens.

A daemon proves what it is by answering a nonce (credentials.py). Without credentials, a process of the same user (or
root) on the same host is one.
"""

import os
import secrets
import socket
from dataclasses import dataclass, field

from daemons.core.errors import ProtocolError
from daemons.transfer.capability import BadCapability, CapabilityKey, Operation
from daemons.transfer.credentials import DATA_PORT, KEY_BYTES, Credential, place_of
from daemons.transfer.transports import sockets, wire

_NONCE_BYTES = 16
_CHALLENGES = (_NONCE_BYTES, _NONCE_BYTES + KEY_BYTES)
"""Lengths: a nonce, with the owner's key behind it where it has one."""
_EMPTY = (0,)


@dataclass(slots=True)
class Peer:
    """What one connection has shown of itself."""

    is_daemon: bool = False
    public: str = ""
    """Its key, of a daemon with keys."""
    nonce: bytes = b""
    pinned: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Who may do what at a data port of this process."""

    key: CapabilityKey
    credential: Credential | None
    requires_capability: bool

    def admit(self, sock: socket.socket) -> Peer:
        """A new connection; with credentials nobody is a daemon yet."""
        if self.credential is not None or sock.family != socket.AF_UNIX:
            return Peer()
        return Peer(is_daemon=sockets.peer_credentials(sock)[1] in (os.geteuid(), 0))

    def challenge(self, peer: Peer) -> bytes:
        peer.nonce = secrets.token_bytes(_NONCE_BYTES)
        return peer.nonce + (self.credential.shown() if self.credential else b"")

    def accept_answer(self, peer: Peer, answer: bytes, sock: socket.socket) -> bool:
        """A nonce is good for one try."""
        nonce, peer.nonce = peer.nonce, b""
        if self.credential is None:
            return True
        if not nonce:
            return False
        public = self.credential.verify(DATA_PORT, nonce, answer, place_of(sock, is_owner=True))
        if public is None:
            return False
        peer.public = public
        # Again: whoever is put out meanwhile was not found among the connections.
        peer.is_daemon = self.credential.admits(public)
        return peer.is_daemon

    def is_out(self, peer: Peer) -> bool:
        """Whether it was a daemon whose key is not let in any more."""
        return (
            bool(peer.public)
            and self.credential is not None
            and not self.credential.admits(peer.public)
        )

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


def authenticate(sock: socket.socket, epoch: int, credential: Credential) -> None:
    """The client's side, right after connect. Raises OSError or ProtocolError."""
    challenge = _exchange(sock, wire.Op.AUTH, epoch, b"", _CHALLENGES)
    nonce, shown = challenge[:_NONCE_BYTES], challenge[_NONCE_BYTES:]
    answer = credential.prove(DATA_PORT, nonce, shown, place_of(sock, is_owner=False))
    _exchange(sock, wire.Op.AUTH, epoch, answer, _EMPTY)


def give_name(sock: socket.socket, epoch: int) -> bytes:
    """Tell the peer a token for this connection, by which another one can end it. Raises as `authenticate`."""
    token = secrets.token_bytes(wire.TOKEN_BYTES)
    _exchange(sock, wire.Op.NAME, epoch, token, _EMPTY)
    return token


def _exchange(
    sock: socket.socket, op: wire.Op, epoch: int, body: bytes, lengths: tuple[int, ...]
) -> bytes:
    """What comes back, of one of these lengths."""
    sock.sendall(wire.encode_request(wire.Request(op, epoch, 0, body=body)))
    magic, status, length, _ = wire.REPLY.unpack(sockets.receive_exactly(sock, wire.REPLY.size))
    if magic != wire.MAGIC or status != wire.Status.OK or length not in lengths:
        raise ProtocolError(
            "the peer does not take this process for a daemon of its cluster"
            if op == wire.Op.AUTH
            else "the peer refuses a name for the connection"
        )
    return sockets.receive_exactly(sock, length)
