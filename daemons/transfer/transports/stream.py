"""READ over a stream socket, UNIX or TCP: a bounded pool of connections to one peer.

A failed transfer closes its connection, so nothing of it can still arrive in the caller's memory.
"""

import itertools
import socket
import threading
from collections.abc import Callable, Iterator

from daemons.core.errors import ProtocolError, TransferError, Unavailable
from daemons.protocol.segment import Strided
from daemons.transfer.strided import iovecs
from daemons.transfer.transports import wire
from daemons.transfer.transports.base import (
    ReadBatch,
    StaleEpoch,
    Unreachable,
    describe,
)

Connect = Callable[[float], socket.socket]
"""Opens a connection within so many seconds; raises OSError."""

_MAX_CONNECTIONS = 8
_CALL_TIMEOUT_S = 0.25
"""Longest wait of one socket call, so that a cancel is noticed."""


class StreamPool:
    """Connections to one peer, at most `_MAX_CONNECTIONS`; READs beyond wait for one until their deadline."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._idle: list[socket.socket] = []
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)

    def read(self, batch: ReadBatch) -> None:
        """All of a batch, in as many requests as its ranges need; on one connection."""
        if not self._free.acquire(timeout=batch.remaining_s()):
            raise Unavailable(f"all connections to {describe(batch.region.address)} are busy")
        try:
            self._read(batch)
        finally:
            self._free.release()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for sock in idle:
            sock.close()

    def _read(self, batch: ReadBatch) -> None:
        sock = self._take()
        is_reused = sock is not None
        sock = sock or self._open(batch)
        try:
            for part in _parts(len(batch.reads)):
                request = _encode(batch, part)
                try:
                    header = _ask(sock, request, batch)
                except (ConnectionError, BrokenPipeError):
                    if not is_reused or part.start:
                        raise
                    # The peer may have closed an idle connection; nothing has arrived, so ask once more.
                    sock.close()
                    sock, is_reused = self._open(batch), False
                    header = _ask(sock, request, batch)
                _receive(sock, header, batch, part)
        except TransferError as error:
            if getattr(error, "keeps_connection", False):
                self._give_back(sock)
            else:
                sock.close()
            raise
        except OSError as error:
            sock.close()
            raise Unavailable(f"{describe(batch.region.address)} is gone: {error}") from error
        except BaseException:
            sock.close()
            raise
        self._give_back(sock)

    def _open(self, batch: ReadBatch) -> socket.socket:
        try:
            return self._connect(min(batch.remaining_s(), 2.0))
        except (OSError, ValueError) as error:  # ValueError: a path or host that can be no address
            raise Unreachable(
                f"cannot connect to {describe(batch.region.address)}: {error}"
            ) from error

    def _take(self) -> socket.socket | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, sock: socket.socket) -> None:
        with self._lock:
            self._idle.append(sock)


class _Refused(TransferError):
    """The peer answered that it will not; the connection is in step."""

    keeps_connection = True


class _RefusedEpoch(StaleEpoch):
    keeps_connection = True


def _parts(num_reads: int) -> Iterator[range]:
    for start in range(0, num_reads, wire.MAX_RANGES):
        yield range(start, min(start + wire.MAX_RANGES, num_reads))


def _encode(batch: ReadBatch, part: range) -> bytes:
    ranges: tuple[Strided, ...] = tuple(read.remote for read in batch.reads[part.start : part.stop])
    guard = batch.generation
    return wire.encode_request(
        wire.Request(
            op=wire.Op.READ,
            epoch=batch.region.address.epoch,
            region_id=batch.region.region_id,
            generation=None if guard is None else (guard.region_id, guard.index),
            ranges=ranges,
        )
    )


def _ask(sock: socket.socket, request: bytes, batch: ReadBatch) -> tuple[int, int]:
    """Send and wait for the reply header; returns (payload length, generation before)."""
    sock.settimeout(batch.remaining_s())
    sock.sendall(request)
    frame = bytearray(wire.REPLY.size)
    _fill(sock, iter([memoryview(frame)]), batch)
    magic, status, length, generation = wire.REPLY.unpack(frame)
    if magic != wire.MAGIC:
        raise ProtocolError(f"{describe(batch.region.address)} does not speak the data protocol")
    if status != wire.Status.OK:
        text = bytearray(min(length, 1024))
        _fill(sock, iter([memoryview(text)]), batch)
        message = f"{describe(batch.region.address)}: {text.decode(errors='replace')}"
        raise (_RefusedEpoch if status == wire.Status.STALE_EPOCH else _Refused)(message)
    return length, generation


def _receive(sock: socket.socket, header: tuple[int, int], batch: ReadBatch, part: range) -> None:
    length, before = header
    reads = batch.reads[part.start : part.stop]
    if length != sum(read.remote.length for read in reads):
        raise TransferError(
            f"{describe(batch.region.address)} announced {length} bytes, a wrong number"
        )
    batch.check_generation(before)
    if batch.on_read is None:
        vectors = (iovecs(read.local.data, read.target) for read in reads)
        _fill(sock, itertools.chain.from_iterable(vectors), batch)
    else:
        for index, read in enumerate(reads, part.start):
            _fill(sock, iovecs(read.local.data, read.target), batch)
            batch.finish(index)
    frame = bytearray(wire.TRAILER.size)
    _fill(sock, iter([memoryview(frame)]), batch)
    magic, after = wire.TRAILER.unpack(frame)
    if magic != wire.MAGIC:
        raise ProtocolError(f"{describe(batch.region.address)} lost step on the data connection")
    batch.check_generation(after)


def _fill(sock: socket.socket, vectors: Iterator[memoryview], batch: ReadBatch) -> None:
    """Receive into all vectors before the batch's deadline, noticing a cancel."""
    for window in wire.windows(vectors):
        while window:
            sock.settimeout(min(batch.remaining_s(), _CALL_TIMEOUT_S))
            try:
                count = sock.recvmsg_into(window)[0]
            except TimeoutError:
                continue
            if count == 0:
                raise ConnectionResetError("the peer closed the connection")
            wire.drop_front(window, count)
