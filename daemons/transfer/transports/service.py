"""What the data port does with one request. Everything is checked before a byte moves; refusals keep the connection.

A WRITE is carried out only while its writer still holds the connection open, and its region counts as in use for
as long: closing one or deregistering the other is what fences it.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from daemons.core.errors import McError, TransferError, Unavailable
from daemons.core.ids import Epoch
from daemons.protocol.base import Record
from daemons.protocol.segment import RegionRef, Strided
from daemons.transfer.capability import BadCapability, Operation
from daemons.transfer.memory import Region
from daemons.transfer.notifications import Notification, Notifications
from daemons.transfer.regions import RegionTable
from daemons.transfer.strided import check_within, contiguous, copy, iovecs
from daemons.transfer.transports import cross_memory, sockets, wire
from daemons.transfer.transports.access import AccessRules, Peer
from daemons.transfer.transports.base import Read, ReadBatch, StaleEpoch

STALL_S = 5.0
"""Longest time without progress of one peer that sends or receives."""

_MAX_INLINE_ROWS = 256
_ADDRESS_SPACE = 1 << 47
_QUICK = (wire.MAGIC, wire.Op.READ, 0, 1, 0, 0, 1)
_NO_GENERATION = wire.TRAILER.pack(wire.MAGIC, 0)


class PullSource(Record, frozen=True, kw_only=True):
    """Body of a PULL: the writer's memory, one range for each range of the request.

    Without a region the offsets are addresses in the writer's process.
    """

    region: RegionRef | None
    ranges: list[Strided]


encode_pull_source = msgspec.msgpack.Encoder().encode
_decode_pull_source = msgspec.msgpack.Decoder(PullSource).decode

Pull = Callable[[ReadBatch], bool]
"""Reads from a peer on this host without its help; False when that is not possible."""


@dataclass(slots=True, eq=False)
class Connection:
    """One peer's socket; a single thread at a time works on it."""

    sock: socket.socket
    peer: Peer
    frame: bytearray = field(default_factory=bytearray)
    last_active_s: float = 0.0
    mapped: set[int] = field(default_factory=set)
    in_use: int | None = None
    """Region of the request that is being served."""
    is_landing: bool = False
    """Bytes of a WRITE are on their way into it: the writer must not see an end before that ended."""
    is_cut: bool = False

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
        if self.is_cut or sockets.has_given_up(self.sock):
            raise ConnectionAbortedError("the writer gave up before its bytes landed")


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
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve_quick(self, connection: Connection, frame: bytes) -> bool:
        """A contiguous READ without generation, by the shortest way; False for all else, and for what is wrong.

        Python that runs behind a copy that emptied the caches is slow: there is little of it.
        """
        if len(frame) != wire.QUICK_READ.size:
            return False
        magic, op, flags, count, size, body, epoch, region_id, _, _, offset, length, rows, _ = (
            wire.QUICK_READ.unpack(frame)
        )
        region = self.regions.find(region_id)
        if (
            (magic, op, flags, count, size, body, rows) != _QUICK
            or epoch != self.epoch
            or region is None
            or not length
            or offset + length > region.size_bytes
            or (self.rules.requires_capability and not connection.peer.is_daemon)
        ):
            return False
        if length > wire.MAX_INLINE:
            self._stream_quick(connection, region, offset, length)
            return True
        answer = b"".join(
            (
                wire.REPLY.pack(wire.MAGIC, 0, length, 0),
                region.view[offset : offset + length],
                _NO_GENERATION,
            )
        )
        if self.regions.find(region_id) is not region:  # it may have gone while it was copied
            return False
        sent = connection.sock.send(answer)
        if sent != len(answer):
            _send(connection.sock, iter([memoryview(answer)[sent:]]))
        self.counters.sent_bytes += length
        return True

    def _stream_quick(
        self, connection: Connection, region: Region, offset: int, length: int
    ) -> None:
        region_id, sock = region.region_id, connection.sock
        connection.in_use = region_id
        try:
            self.regions.hold(region_id)
        except TransferError as error:
            self._refuse(connection, wire.Status.REFUSED, error)
            return
        try:
            window = [
                memoryview(wire.reply(wire.Status.OK, length)),
                region.view[offset : offset + length],
            ]
            while window:
                wire.drop_front(window, sock.sendmsg(window))
            sock.sendall(_NO_GENERATION)
        finally:
            connection.in_use = None
            self.regions.drop(region_id)
        self.counters.sent_bytes += length

    def serve(self, connection: Connection, request: wire.Request) -> None:
        connection.in_use = request.region_id  # before it is looked up: see DataServer.cut
        try:
            self._check_epoch(request)
            self._dispatch(connection, request)
        except BadCapability as error:
            self._refuse(connection, wire.Status.FORBIDDEN, error)
        except StaleEpoch as error:
            self._refuse(connection, wire.Status.STALE_EPOCH, error)
        except McError as error:
            self._refuse(connection, wire.Status.REFUSED, error)
        finally:
            connection.in_use = None

    def release(self, connection: Connection) -> None:
        """The connection ended: so do its pins."""
        pinned, connection.peer.pinned = connection.peer.pinned, {}
        for region_id, count in pinned.items():
            self.regions.unpin(region_id, count)

    def _check_epoch(self, request: wire.Request) -> None:
        if request.epoch != self.epoch and request.op != wire.Op.AUTH:
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

    def _check(
        self, connection: Connection, region: Region, request: wire.Request, operation: Operation
    ) -> int:
        """Length in bytes of a request that may be carried out."""
        for ranges in request.ranges:
            check_within(ranges, region.size_bytes, f"region {region.region_id}")
        self.rules.check(connection.peer, request, operation)
        if operation == "write" and region.access != "read-write":
            raise TransferError(f"region {region.region_id} is registered for READ only")
        return sum(ranges.length for ranges in request.ranges)

    def _read(self, connection: Connection, request: wire.Request) -> None:
        with self.regions.use(request.region_id) as region:
            length = self._check(connection, region, request, "read")
            header = wire.reply(wire.Status.OK, length, self._word(request))
            rows = sum(ranges.num_rows for ranges in request.ranges)
            if length <= wire.MAX_INLINE and rows <= _MAX_INLINE_ROWS:
                payload = b"".join(_vectors(region, request.ranges))
                trailer = wire.TRAILER.pack(wire.MAGIC, self._word(request))
                _send(connection.sock, iter([memoryview(header + payload + trailer)]))
            else:
                _send(connection.sock, _with_header(header, _vectors(region, request.ranges)))
                # The bytes have been copied out of the region by now, so this word covers all of them.
                trailer = wire.TRAILER.pack(wire.MAGIC, self._word(request))
                _send(connection.sock, iter([memoryview(trailer)]))
        self.counters.sent_bytes += length

    def _write(self, connection: Connection, request: wire.Request) -> None:
        connection.is_landing = True
        try:
            with self.regions.use(request.region_id) as region:
                length = self._check(connection, region, request, "write")
                has_landed = self._land(connection, region, request, length)
        finally:
            connection.is_landing = False
        if has_landed:
            self.counters.received_bytes += length
        connection.sock.sendall(wire.reply(wire.Status.OK if has_landed else wire.Status.PRIVATE))

    def _land(
        self, connection: Connection, region: Region, request: wire.Request, length: int
    ) -> bool:
        match request.op:
            case wire.Op.WRITE:
                self._write_inline(connection, region, request, length)
            case wire.Op.STREAM:
                connection.sock.sendall(wire.reply(wire.Status.OK))
                _receive(connection, _vectors(region, request.ranges))
            case _:
                return self._pull(connection, region, request)
        return True

    def _write_inline(
        self, connection: Connection, region: Region, request: wire.Request, length: int
    ) -> None:
        if len(request.body) != length or not length:
            raise TransferError(f"{len(request.body)} bytes came for ranges of {length}")
        connection.check_writer()
        source, start = np.frombuffer(request.body, np.uint8), 0
        for ranges in request.ranges:
            copy(source, contiguous(start, ranges.length), region.array, ranges)
            start += ranges.length

    def _pull(self, connection: Connection, region: Region, request: wire.Request) -> bool:
        if not connection.is_unix or not connection.peer.is_daemon:
            return False
        try:
            source = _decode_pull_source(request.body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TransferError(f"the source of a WRITE cannot be read: {error}") from error
        if len(source.ranges) != len(request.ranges):
            raise TransferError("a WRITE names another number of sources than of targets")
        reads = [
            Read(remote, region.array, target)
            for remote, target in zip(source.ranges, request.ranges, strict=True)
        ]

        connection.check_writer()
        if source.region is None:
            return _pull_across(connection, reads)

        def check_writer(_: int) -> None:
            connection.check_writer()

        batch = ReadBatch(source.region, reads, timeout_s=STALL_S, on_read=check_writer)
        batch.check()
        try:
            return self.pull(batch)
        except Unavailable as error:  # the writer is the one who asked: it cannot be served
            raise TransferError(f"the writer's memory cannot be read: {error.message}") from error

    def _map(self, connection: Connection, request: wire.Request) -> None:
        region = self.regions.get(request.region_id)
        may_map = connection.is_unix and connection.peer.is_daemon
        with self._lock:
            connection.mapped.add(region.region_id)
        descriptor = self.regions.duplicate_fd(region.region_id) if may_map else None
        if descriptor is None:
            address = region.address if may_map else 0
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
        elif self.rules.accept_answer(connection.peer, request.body):
            connection.sock.sendall(wire.reply(wire.Status.OK))
        else:
            raise BadCapability("that is not this cluster's secret")

    def _word(self, request: wire.Request) -> int:
        if request.generation is None:
            return 0
        region_id, index = request.generation
        return self.regions.get(region_id).word(index)

    def _refuse(self, connection: Connection, status: wire.Status, error: McError) -> None:
        self.counters.refused_requests += 1
        text = error.message.encode()[:1024]
        connection.sock.sendall(wire.reply(status, len(text)) + text)


def _pull_across(connection: Connection, reads: Sequence[Read]) -> bool:
    """From private memory of the writer. Its pid is its own as long as its connection is open."""
    pid, _ = sockets.peer_credentials(connection.sock)
    if not pid or not all(cross_memory.fits(read.remote, read.target) for read in reads):
        return False
    memory = cross_memory.ForeignMemory(pid, 0)
    for remote, local, target in reads:
        check_within(remote, _ADDRESS_SPACE, "the address space")
        if remote.length != target.length:
            raise TransferError("a source of a WRITE is not as long as its target")
        try:
            cross_memory.read(memory, remote, local, target, connection.check_writer)
        except PermissionError:
            return False
        except ConnectionError:
            raise
        except OSError as error:
            raise TransferError(f"the writer's memory cannot be read: {error.strerror}") from error
    return True


def _vectors(region: Region, all_ranges: Sequence[Strided]) -> Iterator[memoryview]:
    for ranges in all_ranges:
        yield from iovecs(region.view, ranges)


def _with_header(header: bytes, vectors: Iterator[memoryview]) -> Iterator[memoryview]:
    yield memoryview(header)
    yield from vectors


def _send(sock: socket.socket, vectors: Iterator[memoryview]) -> None:
    """Gather straight from memory; the socket's send timeout is the longest stall."""
    for window in wire.windows(vectors):
        while window:
            wire.drop_front(window, wire.send_window(sock, window))


def _receive(connection: Connection, vectors: Iterator[memoryview]) -> None:
    """Scatter straight into memory, as long as the writer wants it to land."""
    last_progress_s = time.monotonic()
    for window in wire.windows(vectors):
        connection.check_writer()
        while window:
            try:
                count = wire.receive_window(connection.sock, window)
            except BlockingIOError:
                if time.monotonic() - last_progress_s > STALL_S:
                    raise
                continue
            if count == 0:
                raise ConnectionResetError("the writer hung up")
            wire.drop_front(window, count)
            last_progress_s = time.monotonic()
