"""What the data port does with one request. Everything is checked before a byte moves; refusals keep the connection.

How WRITEs land is landing.py's.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from daemons.core.errors import McError, TransferError
from daemons.core.ids import Epoch
from daemons.protocol.segment import Strided
from daemons.transfer.capability import BadCapability, Operation
from daemons.transfer.cuda import CudaError
from daemons.transfer.device_memory import DeviceMemory, pieces_of
from daemons.transfer.memory import Region
from daemons.transfer.notifications import Notification, Notifications
from daemons.transfer.regions import RegionTable
from daemons.transfer.staging import STAGES
from daemons.transfer.strided import check_within, length_of
from daemons.transfer.transports import wire
from daemons.transfer.transports.access import AccessRules
from daemons.transfer.transports.base import StaleEpoch
from daemons.transfer.transports.connection import STALL_S, Connection, NamedConnections
from daemons.transfer.transports.landing import Pull, drain, land, land_quick, vectors_of

log = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0
_MAX_INLINE_ROWS = 256
_FRAME_BYTES = wire.REPLY.size + wire.TRAILER.size
_PLAIN = (wire.MAGIC, 0, 0, 0)
_OK = wire.reply(wire.Status.OK)
_OF_ANY_EPOCH = frozenset((wire.Op.AUTH, wire.Op.NAME))
_READ, _WRITE = int(wire.Op.READ), int(wire.Op.WRITE)
_unpack = wire.REQUEST.unpack_from
_REQUEST_BYTES, _RANGE_BYTES, _QUICK_BYTES = wire.REQUEST.size, wire.RANGE.size, wire.QUICK.size
_NO_GENERATION = wire.TRAILER.pack(wire.MAGIC, 0)


@dataclass(slots=True)
class ServerCounters:
    """Since the start; plain numbers for the metrics of the process."""

    bad_requests: int = 0
    refused_connections: int = 0
    refused_requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Service:
    """Answers requests; raises OSError when the connection is of no more use."""

    regions: RegionTable
    epoch: Epoch
    rules: AccessRules
    notifications: Notifications
    pull: Pull
    counters: ServerCounters = field(default_factory=ServerCounters)
    _names: NamedConnections = field(default_factory=NamedConnections)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _quiet_until_s: list[float] = field(default_factory=lambda: [0.0])

    def serve_quick(self, connection: Connection, frame: bytes) -> bool:
        """Contiguous READs without generation or WRITEs, the shortest way; False for all else, and for what is wrong.

        Python that runs behind a copy that emptied the caches is slow: there is little of it.
        """
        if len(frame) < _QUICK_BYTES:
            return False
        magic, op, flags, count, size, body, epoch, region_id, _, _ = _unpack(frame)
        region = self.regions.find(region_id)
        if (
            (magic, flags, size, body) != _PLAIN
            or epoch != self.epoch
            or region is None
            or (self.rules.requires_capability and not connection.peer.is_daemon)
        ):
            return False
        runs = wire.runs_in(frame, count, region.view)
        if runs is None:
            return False
        end = _REQUEST_BYTES + _RANGE_BYTES * count
        length = runs[0].nbytes if count == 1 else sum([run.nbytes for run in runs])
        if op == _READ and len(frame) == end:
            if length > wire.MAX_INLINE:
                return self._stream_quick(connection, region, runs, length)
            return self._send_quick(connection, region, runs, length)
        early = frame[end:]
        if op != _WRITE or not len(early) <= length <= wire.MAX_EAGER:
            return False
        return region.access == "read-write" and self._write_quick(
            connection, region, early, runs, length
        )

    def _send_quick(
        self, connection: Connection, region: Region, runs: list[memoryview], length: int
    ) -> bool:
        answer = b"".join((wire.REPLY.pack(wire.MAGIC, 0, length, 0), *runs, _NO_GENERATION))
        # It may have gone while it was copied.
        if self.regions.find(region.region_id) is not region:
            return False
        sent = connection.sock.send(answer)
        if sent != len(answer):
            _send(connection.sock, iter([memoryview(answer)[sent:]]))
        self.counters.sent_bytes += length
        return True

    def _stream_quick(
        self, connection: Connection, region: Region, runs: list[memoryview], length: int
    ) -> bool:
        region_id, sock = region.region_id, connection.sock
        connection.in_use = region_id
        try:
            self.regions.hold(region_id)
        except TransferError:
            connection.in_use = None
            return False
        try:
            header = wire.REPLY.pack(wire.MAGIC, 0, length, 0)
            window = [memoryview(header), *runs, memoryview(_NO_GENERATION)]
            sent = sock.sendmsg(window)
            if sent != _FRAME_BYTES + length:
                wire.drop_front(window, sent)
                _send_window(sock, window)
        finally:
            connection.in_use = None
            self.regions.drop(region_id)
        self.counters.sent_bytes += length
        return True

    def _write_quick(
        self,
        connection: Connection,
        region: Region,
        early: bytes,
        runs: list[memoryview],
        length: int,
    ) -> bool:
        region_id = region.region_id
        connection.in_use = region_id  # before it is looked up: see DataServer.cut
        try:
            self.regions.hold(region_id)
        except TransferError:
            connection.in_use = None
            return False
        connection.is_landing = True
        connection.early, connection.unread_bytes = early, length - len(early)
        try:
            land_quick(connection, runs)
            connection.is_landing = False
            connection.sock.sendall(_OK)  # the writer goes on while this side tidies up
        finally:
            connection.is_landing = False
            connection.in_use = None
            self.regions.drop(region_id)
        self.counters.received_bytes += length
        return True

    def serve(self, connection: Connection, request: wire.Request) -> None:
        connection.in_use = request.region_id  # before it is looked up: see DataServer.cut
        try:
            self._check_epoch(request)
            self._dispatch(connection, request)
        except CudaError as error:
            # In the middle of the bytes nothing else can be said on this connection.
            raise ConnectionAbortedError(error.message) from error
        except BadCapability as error:
            self._refuse(connection, wire.Status.FORBIDDEN, error)
        except StaleEpoch as error:
            self._refuse(connection, wire.Status.STALE_EPOCH, error)
        except McError as error:
            self._refuse(connection, wire.Status.REFUSED, error)
        finally:
            connection.in_use = None

    def release(self, connection: Connection) -> None:
        """The connection ended: so do its pins and its name."""
        self._names.remove(connection)
        pinned, connection.peer.pinned = connection.peer.pinned, {}
        for region_id, count in pinned.items():
            self.regions.unpin(region_id, count)

    def is_out(self, connection: Connection) -> bool:
        """Whether its peer's key is not let in any more."""
        return self.rules.is_out(connection.peer)

    def is_stranger(self, connection: Connection) -> bool:
        """Whether it could have proved that it is a daemon, and has not."""
        return self.rules.credential is not None and not connection.peer.is_daemon

    def _check_epoch(self, request: wire.Request) -> None:
        if request.epoch != self.epoch and request.op not in _OF_ANY_EPOCH:
            raise StaleEpoch("the descriptor is of an earlier life of this process")

    def _dispatch(self, connection: Connection, request: wire.Request) -> None:
        match request.op:
            case wire.Op.READ:
                self._read(connection, request)
            case wire.Op.WRITE | wire.Op.STREAM | wire.Op.PULL:
                self._write(connection, request)
            case wire.Op.MAP:
                self._map(connection, request)
            case wire.Op.PIN | wire.Op.UNPIN:
                self._pin(connection, request)
            case wire.Op.NOTIFY:
                self._notify(connection, request)
            case wire.Op.AUTH:
                self._authenticate(connection, request)
            case wire.Op.NAME:
                self._names.add(connection, request.body)
                connection.sock.sendall(wire.reply(wire.Status.OK))
            case wire.Op.FENCE:
                self._names.end(request.body)
                connection.sock.sendall(wire.reply(wire.Status.OK))

    def _check(
        self, connection: Connection, region: Region, request: wire.Request, operation: Operation
    ) -> int:
        """Length in bytes of a request that may be carried out."""
        self.rules.check(connection.peer, request, operation)  # first: sizes are not for everybody
        for ranges in request.ranges:
            check_within(ranges, region.size_bytes, f"region {region.region_id}")
        if operation == "write" and region.access != "read-write":
            raise TransferError(f"region {region.region_id} is registered for READ only")
        return length_of(request.ranges)

    def _read(self, connection: Connection, request: wire.Request) -> None:
        with self.regions.use(request.region_id) as region:
            length = self._check(connection, region, request, "read")
            header = wire.reply(wire.Status.OK, length, self._word(request))
            rows = sum(ranges.num_rows for ranges in request.ranges)
            if region.device is not None:
                _send(connection.sock, iter([memoryview(header)]))
                _send_staged(connection.sock, region.device, request.ranges)
                trailer = wire.TRAILER.pack(wire.MAGIC, self._word(request))
                _send(connection.sock, iter([memoryview(trailer)]))
            elif length <= wire.MAX_INLINE and rows <= _MAX_INLINE_ROWS:
                payload = b"".join(vectors_of(region, request.ranges))
                trailer = wire.TRAILER.pack(wire.MAGIC, self._word(request))
                _send(connection.sock, iter([memoryview(header + payload + trailer)]))
            else:
                _send(connection.sock, _with_header(header, vectors_of(region, request.ranges)))
                # The bytes have been copied out of the region by now, so this word covers all of them.
                trailer = wire.TRAILER.pack(wire.MAGIC, self._word(request))
                _send(connection.sock, iter([memoryview(trailer)]))
        self.counters.sent_bytes += length

    def _write(self, connection: Connection, request: wire.Request) -> None:
        connection.is_landing = True
        try:
            with self.regions.use(request.region_id) as region:
                length = self._check(connection, region, request, "write")
                has_landed = land(connection, region, request, self.pull)
        finally:
            connection.is_landing = False
        if has_landed:
            self.counters.received_bytes += length
        connection.sock.sendall(wire.reply(wire.Status.OK if has_landed else wire.Status.PRIVATE))

    def _map(self, connection: Connection, request: wire.Request) -> None:
        region = self.regions.get(request.region_id)
        may_map = connection.is_unix and connection.peer.is_daemon
        with self._lock:
            connection.mapped.add(region.region_id)
        descriptor = self.regions.duplicate_fd(region.region_id) if may_map else None
        if descriptor is None:
            address = region.address if may_map and region.device is None else 0
            connection.sock.sendall(
                wire.reply(wire.Status.PRIVATE, region.size_bytes if may_map else 0, address)
            )
            return
        try:
            header = wire.reply(wire.Status.OK, region.size_bytes)
            socket.send_fds(connection.sock, [header], [descriptor])
        finally:
            os.close(descriptor)

    def _pin(self, connection: Connection, request: wire.Request) -> None:
        pinned, region_id = connection.peer.pinned, request.region_id
        if not connection.is_unix or not connection.peer.is_daemon:
            raise BadCapability("only a daemon on the same host may hold views")
        if request.op == wire.Op.PIN:
            region = self.regions.pin(region_id)
            pinned[region_id] = pinned.get(region_id, 0) + 1
            if region.fd is None:
                self._unpin(connection, region_id)
                raise TransferError(f"region {region_id} is private memory: it has no views")
        elif region_id in pinned:
            self._unpin(connection, region_id)
        connection.sock.sendall(wire.reply(wire.Status.OK))

    def _unpin(self, connection: Connection, region_id: int) -> None:
        pinned = connection.peer.pinned
        pinned[region_id] -= 1
        if not pinned[region_id]:
            del pinned[region_id]
        self.regions.unpin(region_id)

    def _notify(self, connection: Connection, request: wire.Request) -> None:
        self.rules.check_any(connection.peer, request)
        is_taken = self.notifications.put(Notification(request.region_id, request.body))
        connection.sock.sendall(wire.reply(wire.Status.OK if is_taken else wire.Status.FULL))

    def _authenticate(self, connection: Connection, request: wire.Request) -> None:
        if not request.body:
            nonce = self.rules.challenge(connection.peer)
            connection.sock.sendall(wire.reply(wire.Status.OK, len(nonce)) + nonce)
        elif self.rules.accept_answer(connection.peer, request.body, connection.sock):
            connection.sock.sendall(wire.reply(wire.Status.OK))
        else:
            self._log_refused(connection)
            raise BadCapability("that proves no daemon of this cluster")

    def _log_refused(self, connection: Connection) -> None:
        """Not each: whoever knocks must not fill the disk."""
        now_s = time.monotonic()
        if now_s >= self._quiet_until_s[0]:
            self._quiet_until_s[0] = now_s + _LOG_EVERY_S
            peer = connection.sock.getpeername()
            log.warning("data peer refused from=%s why='proves no daemon of this cluster'", peer)

    def _word(self, request: wire.Request) -> int:
        if request.generation is None:
            return 0
        region_id, index = request.generation
        return self.regions.get(region_id).word(index)

    def _refuse(self, connection: Connection, status: wire.Status, error: McError) -> None:
        self.counters.refused_requests += 1
        drain(connection, STALL_S if self.is_stranger(connection) else None)
        text = error.message.encode()[:1024]
        connection.sock.sendall(wire.reply(status, len(text)) + text)


def _send_staged(sock: socket.socket, memory: DeviceMemory, ranges: Sequence[Strided]) -> None:
    for piece in pieces_of(ranges):
        with STAGES.stage(memory) as stage:
            memory.gather(piece, stage)
            _send(sock, iter([stage.first(piece.length)]))


def _with_header(header: bytes, vectors: Iterator[memoryview]) -> Iterator[memoryview]:
    yield memoryview(header)
    yield from vectors


def _send(sock: socket.socket, vectors: Iterator[memoryview]) -> None:
    """Gather straight from memory; the socket's send timeout is the longest stall."""
    for window in wire.windows(vectors):
        _send_window(sock, window)


def _send_window(sock: socket.socket, window: list[memoryview]) -> None:
    while window:
        wire.drop_front(window, wire.send_window(sock, window))
