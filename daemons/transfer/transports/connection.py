"""One peer's connection to the data port, and how it is ended without anything of it landing later."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from daemons.core.errors import TransferError
from daemons.transfer.transports import sockets, wire
from daemons.transfer.transports.access import Peer

STALL_S = 5.0
"""Longest time without progress of one peer that sends or receives."""

_FENCE_WAIT_S = 0.8
_FENCE_POLL_S = 0.001


@dataclass(slots=True, eq=False)
class Connection:
    """One peer's socket; a single thread at a time works on it."""

    sock: socket.socket
    peer: Peer
    frame: bytearray = field(default_factory=bytearray)
    last_active_s: float = 0.0
    mapped: set[int] = field(default_factory=set)
    token: bytes = b""
    early: bytes = b""
    """Of a WRITE, what came along with its request."""
    unread_bytes: int = 0
    """Of a WRITE, what else must be taken off the socket before the next request."""
    in_use: int | None = None
    """Region of the request that is being served."""
    is_landing: bool = False
    """Bytes of a WRITE are on their way into it: the writer must not see an end before that ended."""
    is_cut: bool = False
    _hangups: Callable[[int], list[tuple[int, int]]] | None = None

    @property
    def is_unix(self) -> bool:
        return self.sock.family == socket.AF_UNIX

    def end(self) -> None:
        """Wake whoever works on it. Only the end of the socket itself tells a writer that its WRITE is over."""
        self.is_cut = True
        if not self.is_landing:
            sockets.shut(self.sock)
            return
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RD)

    def check_writer(self) -> None:
        """Nothing may land for a writer that gave up, or once the owner wants the region back."""
        if self._hangups is None:
            self._hangups = sockets.hangups(self.sock)
        if self.is_cut or self._hangups(0):
            raise ConnectionAbortedError("the writer gave up before its bytes landed")


class NamedConnections:
    """Connections by the token their writer chose, so that it can end one over another."""

    def __init__(self) -> None:
        self._by_token: dict[bytes, Connection] = {}
        self._lock = threading.Lock()

    def add(self, connection: Connection, token: bytes) -> None:
        if len(token) != wire.TOKEN_BYTES or connection.token:
            raise TransferError(f"a connection has one name of {wire.TOKEN_BYTES} bytes")
        with self._lock:
            if self._by_token.setdefault(token, connection) is not connection:
                raise TransferError("another connection has that name")
            connection.token = token

    def remove(self, connection: Connection) -> None:
        with self._lock:
            if connection.token:
                self._by_token.pop(connection.token, None)

    def end(self, token: bytes) -> None:
        """On return nothing that came over it can land any more. One that is not here has ended before."""
        with self._lock:
            connection = self._by_token.get(token)
        if connection is None:
            return
        connection.end()
        deadline_s = time.monotonic() + _FENCE_WAIT_S
        while connection.is_landing:
            if time.monotonic() > deadline_s:
                raise TransferError("what came over that connection still lands")
            time.sleep(_FENCE_POLL_S)
        sockets.shut(connection.sock)
