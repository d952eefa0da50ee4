"""The data port: accepts, assembles requests, and lends each connection to a worker that serves it.

One thread owns the connections that are quiet. A worker keeps a connection for a moment after an answer, so that
a busy peer costs no hand-over between threads; a slow or hostile one never holds more than one worker for one stall.

Where daemons prove what they are, those that have not (clients with capabilities, and whoever knocks) are strangers:
they have workers of their own and at most half of the connections, so that no number of them holds a daemon up.
"""

import logging
import queue
import selectors
import socket
import threading
import time
from collections.abc import Iterable

from daemons.core.errors import ProtocolError
from daemons.transfer.strided import length_of
from daemons.transfer.transports import sockets, wire
from daemons.transfer.transports.connection import STALL_S, Connection
from daemons.transfer.transports.service import ServerCounters, Service
from daemons.transfer.transports.workers import Workers

log = logging.getLogger(__name__)

_MAX_CONNECTIONS = 256
_MAX_STRANGERS = 128
_NUM_WORKERS = 64
_NUM_FOR_STRANGERS = 16
_HEADER_TIMEOUT_S = 5.0
_FIRST_READ = wire.MAX_INLINE + 256
"""A small request with the bytes of its WRITE."""

_QUICK = frozenset(
    (wire.Op.MAP, wire.Op.AUTH, wire.Op.PIN, wire.Op.UNPIN, wire.Op.NOTIFY, wire.Op.NAME)
)
"""Served by the port's own thread: two processes that PULL from each other must not wait for workers."""


class DataServer:
    """Serves until `close`. The listeners become its own."""

    def __init__(self, service: Service, listeners: list[socket.socket]) -> None:
        self._service = service
        self._listeners = listeners
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._idle: set[Connection] = set()
        self._returned: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._is_closing = False
        self._workers = Workers(_NUM_WORKERS, "mc-data")
        self._for_strangers = Workers(_NUM_FOR_STRANGERS, "mc-data-s")
        self._thread = threading.Thread(target=self._run, name="mc-data-port", daemon=True)
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._thread.start()

    @property
    def counters(self) -> ServerCounters:
        return self._service.counters

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    def forget(self, region_id: int) -> None:
        """Cut off peers that mapped a region that is going away: on the lost connection they drop their maps."""
        with self._lock:
            holders = [c for c in self._connections if region_id in c.mapped]
        for connection in holders:
            connection.end()

    def cut(self, region_id: int) -> None:
        """End the connections whose request uses the region, which nobody new can find any more."""
        with self._lock:
            users = [c for c in self._connections if c.in_use == region_id]
        for connection in users:
            connection.end()

    def cut_refused(self) -> None:
        """End the connections of daemons whose keys are not let in any more."""
        with self._lock:
            refused = [c for c in self._connections if self._service.is_out(c)]
        for connection in refused:
            connection.end()
        if refused:
            log.warning("data connections cut count=%d why='their keys were revoked'", len(refused))

    def close(self) -> None:
        """A second time it does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        self._wake()
        self._thread.join()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.end()
        self._workers.pool.shutdown()
        self._for_strangers.pool.shutdown()
        for sock in (
            *self._listeners,
            *(c.sock for c in connections),
            self._wake_in,
            self._wake_out,
        ):
            sock.close()
        self._selector.close()

    # The port's own thread.

    def _run(self) -> None:
        while not self._is_closing:
            for key, _ in self._selector.select(timeout=1.0):
                if key.data is not None:
                    self._receive(key.data)
                elif key.fileobj is self._wake_in:
                    self._take_back()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._accept(key.fileobj)
            self._drop_slow()

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        if not self._has_room():
            self.counters.refused_connections += 1
            sock.close()
            return
        try:
            sockets.prepare(sock, send_timeout_s=STALL_S, receive_timeout_s=sockets.TICK_S)
            connection = Connection(sock, self._service.rules.admit(sock))
        except OSError:  # it is gone already
            sock.close()
            return
        with self._lock:
            self._connections.add(connection)
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        connection.last_active_s = time.monotonic()
        self._idle.add(connection)
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)

    def _unwatch(self, connection: Connection) -> None:
        self._idle.discard(connection)
        self._selector.unregister(connection.sock)

    def _drop(self, connection: Connection) -> None:
        if connection in self._idle:
            self._unwatch(connection)
        with self._lock:
            self._connections.discard(connection)
        self._service.release(connection)
        connection.sock.close()

    def _has_room(self) -> bool:
        """Or makes it. Those that were cut go as soon as whoever serves them looks."""
        with self._lock:
            live = [c for c in self._connections if not c.is_cut]
        strangers = [c for c in live if self._service.is_stranger(c)]
        if len(strangers) >= _MAX_STRANGERS:
            if not self._evict_idle(strangers):
                min(strangers, key=lambda c: c.last_active_s).end()
            live.pop()  # one less, whichever it was
        if len(self._connections) >= 2 * _MAX_CONNECTIONS:
            return False
        return len(live) < _MAX_CONNECTIONS or self._evict_idle(self._idle)

    def _evict_idle(self, among: Iterable[Connection]) -> bool:
        """The TCP connection that was idle longest goes, a stranger's first; its pool reopens when it needs to."""
        idle = [c for c in among if c in self._idle and not c.is_unix]
        if not idle:
            return False
        self._drop(min(idle, key=lambda c: (not self._service.is_stranger(c), c.last_active_s)))
        return True

    def _drop_slow(self) -> None:
        oldest = time.monotonic() - _HEADER_TIMEOUT_S
        for connection in [c for c in self._idle if c.frame and c.last_active_s < oldest]:
            self.counters.bad_requests += 1
            self._drop(connection)

    def _take_back(self) -> None:
        self._wake_in.recv(4096)
        while True:
            try:
                self._watch(self._returned.get_nowait())
            except queue.Empty:
                return

    def _receive(self, connection: Connection) -> None:
        if not connection.frame:
            connection.last_active_s = time.monotonic()
        try:
            received = connection.sock.recv(_wanted(connection.frame), socket.MSG_DONTWAIT)
            request = _assemble(connection, received)
            if request is None:
                return
            if request.op in _QUICK:
                sockets.check_room(connection.sock)
                self._service.serve(connection, request)
                return
        except ProtocolError:
            self.counters.bad_requests += 1
            self._drop(connection)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)
        except Exception:
            log.exception("data request failed")
            self._fail(connection)
        else:
            self._unwatch(connection)
            is_stranger = self._service.is_stranger(connection)
            workers = self._for_strangers if is_stranger else self._workers
            workers.pool.submit(self._serve, workers, connection, request)

    def _fail(self, connection: Connection) -> None:
        """A bug of ours costs the connection, not the thread: the port goes on for all others."""
        self.counters.bad_requests += 1
        sockets.shut(connection.sock)

    def _wake(self) -> None:
        self._wake_out.send(b"\0")

    # Workers.

    def _serve(self, workers: Workers, connection: Connection, first: wire.Request) -> None:
        request: wire.Request | None = first
        try:
            while request is not None:
                self._service.serve(connection, request)
                request = self._linger(workers, connection)
        except ProtocolError:
            self.counters.bad_requests += 1
            sockets.shut(connection.sock)
        except OSError:
            sockets.shut(connection.sock)  # the port's thread sees the end of it and drops it
        except Exception:
            log.exception("data request failed")
            self._fail(connection)
        if not self._is_closing:
            self._returned.put(connection)
            self._wake()

    def _linger(self, workers: Workers, connection: Connection) -> wire.Request | None:
        """The next request if it comes within a tick and enough workers are free for others."""
        if self._is_closing or not workers.linger():
            return None
        try:
            while True:
                try:
                    frame = connection.sock.recv(_wanted(connection.frame))
                except (
                    BlockingIOError
                ):  # of this alone: where an answer stalls the connection is out of step
                    return None
                if connection.frame or not self._service.serve_quick(connection, frame):
                    request = _assemble(connection, frame)
                    if request is not None:
                        return request
        finally:
            workers.end_lingering()


def _wanted(frame: bytearray) -> int:
    """Bytes to receive next."""
    if not frame or len(frame) < wire.REQUEST.size:
        return _FIRST_READ
    return max(wire.request_length(frame) - len(frame), 1)


def _assemble(connection: Connection, received: bytes) -> wire.Request | None:
    """The request when it is whole. Peers wait for an answer, so nothing but the bytes of a WRITE may follow it."""
    if not received:
        raise ConnectionResetError
    frame = connection.frame
    frame += received
    if len(frame) < wire.REQUEST.size:
        return None
    length = wire.request_length(frame)
    if len(frame) < length:
        return None
    request = wire.decode_request(frame[:length])
    connection.early = bytes(frame[length:])
    connection.frame = bytearray()
    following = length_of(request.ranges) if request.op == wire.Op.WRITE else 0
    connection.unread_bytes = following - len(connection.early)
    if connection.unread_bytes < 0:
        raise ProtocolError("bytes behind a data request")
    return request
