"""The data port: serves READs of registered regions to sockets, and descriptors to peers on the same host.

One thread owns all idle connections and assembles requests; a small pool serves them, so that neither slow nor
hostile peers cost a thread each. Bytes that do not parse close the connection and are counted.
"""

import queue
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from daemons.core.errors import ProtocolError, TransferError
from daemons.core.ids import Epoch
from daemons.transfer.memory import Region, RegionTable
from daemons.transfer.strided import check_within, iovecs
from daemons.transfer.transports import wire

_MAX_CONNECTIONS = 256
_NUM_WORKERS = 8
_HEADER_TIMEOUT_S = 5.0
_SEND_TIMEOUT_S = 5.0
"""Longest time without progress of one send."""


@dataclass(slots=True, eq=False)
class _Connection:
    sock: socket.socket
    frame: bytearray = field(default_factory=bytearray)
    last_active_s: float = 0.0
    mapped: set[int] = field(default_factory=set)

    @property
    def is_unix(self) -> bool:
        return self.sock.family == socket.AF_UNIX


@dataclass(slots=True)
class ServerCounters:
    """Since the start; plain numbers for the metrics of the process."""

    bad_requests: int = 0
    refused_connections: int = 0
    sent_bytes: int = 0


class DataServer:
    """Serves until `close`. The listeners become its own."""

    def __init__(self, regions: RegionTable, epoch: Epoch, listeners: list[socket.socket]) -> None:
        self.counters = ServerCounters()
        self._regions = regions
        self._epoch = epoch
        self._listeners = listeners
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._idle: set[_Connection] = set()
        self._returned: queue.SimpleQueue[_Connection] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._is_closing = False
        self._workers = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="mc-data")
        self._thread = threading.Thread(target=self._run, name="mc-data-port", daemon=True)
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._thread.start()

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    def forget(self, region_id: int) -> None:
        """Cut off peers that mapped a region that is going away: on the lost connection they drop their maps."""
        with self._lock:
            holders = [c for c in self._connections if region_id in c.mapped]
        for connection in holders:
            _shut(connection.sock)

    def close(self) -> None:
        self._is_closing = True
        self._wake()
        self._thread.join()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            _shut(connection.sock)
        self._workers.shutdown()
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
        if len(self._connections) >= _MAX_CONNECTIONS and not self._evict_idle():
            self.counters.refused_connections += 1
            sock.close()
            return
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(sock)
        with self._lock:
            self._connections.add(connection)
        self._watch(connection)

    def _watch(self, connection: _Connection) -> None:
        connection.sock.setblocking(False)
        connection.last_active_s = time.monotonic()
        self._idle.add(connection)
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)

    def _unwatch(self, connection: _Connection) -> None:
        self._idle.discard(connection)
        self._selector.unregister(connection.sock)

    def _drop(self, connection: _Connection) -> None:
        if connection in self._idle:
            self._unwatch(connection)
        with self._lock:
            self._connections.discard(connection)
        connection.sock.close()

    def _evict_idle(self) -> bool:
        """Make room: the TCP connection that was idle longest goes; its pool reopens when it needs to."""
        idle = [c for c in self._idle if not c.is_unix]
        if not idle:
            return False
        self._drop(min(idle, key=lambda c: c.last_active_s))
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

    def _receive(self, connection: _Connection) -> None:
        try:
            request = self._assemble(connection)
        except ProtocolError:
            self.counters.bad_requests += 1
            self._drop(connection)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)
        else:
            if request is not None:
                connection.frame.clear()
                self._unwatch(connection)
                self._workers.submit(self._serve, connection, request)

    def _assemble(self, connection: _Connection) -> wire.Request | None:
        frame = connection.frame
        if not frame:
            connection.last_active_s = time.monotonic()
        wanted = wire.REQUEST.size
        if len(frame) >= wanted:
            wanted = wire.request_length(frame)
        if wanted > len(frame):
            received = connection.sock.recv(wanted - len(frame))
            if not received:
                raise ConnectionResetError
            frame += received
        if len(frame) < wire.REQUEST.size or len(frame) < wire.request_length(frame):
            return None
        return wire.decode_request(frame)

    def _wake(self) -> None:
        self._wake_out.send(b"\0")

    # Workers.

    def _serve(self, connection: _Connection, request: wire.Request) -> None:
        try:
            connection.sock.settimeout(_SEND_TIMEOUT_S)
            if request.op == wire.Op.MAP:
                self._serve_map(connection, request)
            else:
                self._serve_read(connection.sock, request)
        except OSError:
            _shut(connection.sock)  # the port's thread sees the end of it and drops it
        if not self._is_closing:
            self._returned.put(connection)
            self._wake()

    def _serve_read(self, sock: socket.socket, request: wire.Request) -> None:
        try:
            region, before = self._check(request)
        except TransferError as error:
            self._refuse(sock, request, error)
            return
        length = sum(ranges.length for ranges in request.ranges)
        header = wire.REPLY.pack(wire.MAGIC, wire.Status.OK, length, before)
        wire.send_vectors(sock, _payload(header, region, request))
        # The bytes have been copied out of the region by now, so this word covers all of them.
        sock.sendall(wire.TRAILER.pack(wire.MAGIC, self._word(request)))
        self.counters.sent_bytes += length

    def _serve_map(self, connection: _Connection, request: wire.Request) -> None:
        sock = connection.sock
        try:
            region, _ = self._check(request)
            descriptor = self._regions.duplicate_fd(region.region_id)
        except TransferError as error:
            self._refuse(sock, request, error)
            return
        if descriptor is None or not connection.is_unix:
            if descriptor is not None:
                socket.close(descriptor)
            sock.sendall(wire.REPLY.pack(wire.MAGIC, wire.Status.PRIVATE, 0, 0))
            return
        try:
            with self._lock:
                connection.mapped.add(region.region_id)
            header = wire.REPLY.pack(wire.MAGIC, wire.Status.OK, region.size_bytes, 0)
            socket.send_fds(sock, [header], [descriptor])
        finally:
            socket.close(descriptor)

    def _check(self, request: wire.Request) -> tuple[Region, int]:
        if request.epoch != self._epoch:
            raise TransferError("the descriptor is of an earlier life of this process")
        region = self._regions.get(request.region_id)
        for ranges in request.ranges:
            check_within(ranges, region.size_bytes, f"region {region.region_id}")
        return region, self._word(request)

    def _word(self, request: wire.Request) -> int:
        if request.generation is None:
            return 0
        region_id, index = request.generation
        return self._regions.get(region_id).word(index)

    def _refuse(self, sock: socket.socket, request: wire.Request, error: TransferError) -> None:
        is_stale = request.epoch != self._epoch
        status = wire.Status.STALE_EPOCH if is_stale else wire.Status.REFUSED
        text = error.message.encode()
        sock.sendall(wire.REPLY.pack(wire.MAGIC, status, len(text), 0) + text)


def _payload(header: bytes, region: Region, request: wire.Request) -> Iterator[memoryview]:
    yield memoryview(header)
    for ranges in request.ranges:
        yield from iovecs(region.view, ranges)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
