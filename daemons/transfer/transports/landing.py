"""WRITEs at the target: carried out only while the writer still holds its connection open.

The region counts as in use for as long: closing one or deregistering the other is what fences a WRITE.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from daemons.core.errors import TransferError, Unavailable
from daemons.protocol.base import MALFORMED, Record
from daemons.protocol.segment import RegionRef, Strided
from daemons.transfer.device_memory import (
    DeviceMemory,
    on_host,
    pieces_between,
    pieces_of,
)
from daemons.transfer.memory import Region
from daemons.transfer.staging import STAGES, reads_of
from daemons.transfer.strided import check_within, iovecs_of
from daemons.transfer.transports import cross_memory, sockets, wire
from daemons.transfer.transports.base import Read, ReadBatch
from daemons.transfer.transports.connection import STALL_S, Connection

_ADDRESS_SPACE = 1 << 47
_DRAIN_BYTES = 64 << 10


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


def land(connection: Connection, region: Region, request: wire.Request, pull: Pull) -> bool:
    """Carry out a WRITE that was checked; False where its source cannot be read from here."""
    match request.op:
        case wire.Op.WRITE:
            _receive_into(connection, region, request.ranges)
        case wire.Op.STREAM:
            connection.sock.sendall(wire.reply(wire.Status.OK))
            _receive_into(connection, region, request.ranges)
        case _:
            return _pull(connection, region, request, pull)
    return True


def _receive_into(connection: Connection, region: Region, ranges: Sequence[Strided]) -> None:
    if region.device is None:
        _receive(connection, vectors_of(region, ranges))
        return
    for piece in pieces_of(ranges):
        with STAGES.stage(region.device) as stage:
            _receive(connection, iter([stage.first(piece.length)]))
            connection.check_writer()
            region.device.scatter(piece, stage)


def _pull(connection: Connection, region: Region, request: wire.Request, pull: Pull) -> bool:
    if not connection.is_unix or not connection.peer.is_daemon:
        return False
    try:
        source = _decode_pull_source(request.body)
    except MALFORMED as error:
        raise TransferError(f"the source of a WRITE cannot be read: {error}") from error
    if len(source.ranges) != len(request.ranges):
        raise TransferError("a WRITE names another number of sources than of targets")

    def carry(reads: Sequence[Read]) -> bool:
        connection.check_writer()
        if source.region is None:
            return _pull_across(connection, reads)
        return _pull_mapped(connection, source.region, reads, pull)

    pairs = list(zip(source.ranges, request.ranges, strict=True))
    if region.device is None:
        return carry([Read(remote, region.array, target) for remote, target in pairs])
    return all(_pull_staged(region.device, *pair, carry) for pair in pairs)


def _pull_staged(
    memory: DeviceMemory,
    remote: Strided,
    target: Strided,
    carry: Callable[[Sequence[Read]], bool],
) -> bool:
    if remote.length != target.length:
        raise TransferError("a source of a WRITE is not as long as its target")
    for piece in pieces_between(remote, target):
        with STAGES.stage(memory) as stage:
            if not carry(reads_of(piece, stage)):
                return False
            memory.scatter(piece, stage)
    return True


def _pull_mapped(
    connection: Connection, region: RegionRef, reads: Sequence[Read], pull: Pull
) -> bool:
    def check_writer(_: int) -> None:
        connection.check_writer()

    batch = ReadBatch(region, reads, timeout_s=STALL_S, on_read=check_writer)
    batch.check()
    try:
        return pull(batch)
    except Unavailable as error:  # the writer is the one who asked: it cannot be served
        raise TransferError(f"the writer's memory cannot be read: {error.message}") from error


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
            cross_memory.read(memory, remote, on_host(local), target, connection.check_writer)
        except PermissionError:
            return False
        except ConnectionError:
            raise
        except OSError as error:
            raise TransferError(f"the writer's memory cannot be read: {error.strerror}") from error
    return True


def vectors_of(region: Region, all_ranges: Sequence[Strided]) -> Iterator[memoryview]:
    """Every run of the ranges, in order."""
    return iovecs_of([(region.view, ranges) for ranges in all_ranges])


def land_quick(connection: Connection, runs: Sequence[memoryview]) -> None:
    """A WRITE that was checked into these runs, mostly one."""
    if len(runs) > 1:
        _receive(connection, iter(runs))
        return
    (target,) = runs
    connection.check_writer()
    early, connection.early = connection.early, b""
    start = len(early)
    target[:start] = early
    if connection.unread_bytes:
        _fill(connection, [target[start:]])


def drain(connection: Connection, limit_s: float | None = None) -> None:
    """Take the bytes of a refused WRITE off the socket. Raises OSError where they take longer than `limit_s`."""
    connection.early = b""
    scratch = memoryview(bytearray(min(connection.unread_bytes, _DRAIN_BYTES)))
    end_s = math.inf if limit_s is None else time.monotonic() + limit_s
    while connection.unread_bytes:
        _fill(connection, [scratch[: connection.unread_bytes]], end_s)


def _receive(connection: Connection, vectors: Iterator[memoryview]) -> None:
    """Scatter straight into memory, as long as the writer wants it to land."""
    early, connection.early = memoryview(connection.early), b""
    for window in wire.windows(vectors):
        connection.check_writer()
        while window and early:
            count = min(len(early), len(window[0]))
            window[0][:count] = early[:count]
            early = early[count:]
            wire.drop_front(window, count)
        _fill(connection, window)


def _fill(connection: Connection, window: list[memoryview], end_s: float = math.inf) -> None:
    """Raises OSError where nothing comes for STALL_S, and at `end_s` however much does."""
    last_progress_s = time.monotonic()
    while window:
        if time.monotonic() > end_s:
            raise TimeoutError
        try:
            count = wire.receive_window(connection.sock, window)
        except BlockingIOError:
            if time.monotonic() - last_progress_s > STALL_S:
                raise
            continue
        if count == 0:
            raise ConnectionResetError("the writer hung up")
        if count == connection.unread_bytes:  # The writer waits, and Python is slow behind a copy.
            connection.unread_bytes = 0
            return
        connection.unread_bytes -= min(count, connection.unread_bytes)
        wire.drop_front(window, count)
        last_progress_s = time.monotonic()
