"""One request and its answer on a data connection, from the asking side. Calls wait a tick at a time.

`Refusal`s leave the connection in step; any other error means that it must be closed.
"""

import math
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple

from daemons.core.errors import Exhausted, ProtocolError, TransferError
from daemons.transfer.capability import BadCapability
from daemons.transfer.transports import wire
from daemons.transfer.transports.base import Batch, StaleEpoch, describe
from daemons.transfer.transports.runs import Runs

_OK = wire.reply(wire.Status.OK)
_MAGIC, _WAIT_ALL = wire.MAGIC, int(socket.MSG_WAITALL)
_REPLY_BYTES, _TRAILER_BYTES = wire.REPLY.size, wire.TRAILER.size
_FRAME_BYTES = _REPLY_BYTES + _TRAILER_BYTES
_unpack_reply = wire.REPLY.unpack_from
_SCRATCH_BYTES = wire.REPLY.size + wire.MAX_INLINE + wire.TRAILER.size


class Stream:
    """A prepared socket and room for a small answer: what is not payload must never reach the caller's memory."""

    __slots__ = ("last_answer_s", "scratch", "sock", "token")

    def __init__(self, sock: socket.socket, token: bytes = b"") -> None:
        self.sock = sock
        self.token = token
        """What the peer knows this connection by, if anything."""
        self.last_answer_s = -math.inf
        """To a WRITE that took the short way."""
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))

    def close(self) -> None:
        self.sock.close()


def ask(stream: Stream, request: bytes, batch: Batch) -> tuple[int, int]:
    """Send, and wait for the header of the answer: (payload length, word). Raises what the status says."""
    send(stream.sock, iter([memoryview(request)]), batch)
    return answer(stream, batch)


def answer(stream: Stream, batch: Batch) -> tuple[int, int]:
    fill(stream.sock, iter([stream.scratch[: wire.REPLY.size]]), batch)
    return check_header(stream, batch, wire.REPLY.size)


def read_quick(stream: Stream, runs: Runs, deadline_s: float) -> bool:
    """The plain answer to a READ of contiguous ranges; False for anything else, the connection is then lost."""
    sock, scratch, length = stream.sock, stream.scratch, runs.length
    is_small = length <= wire.MAX_INLINE
    wanted = _FRAME_BYTES + length if is_small else _REPLY_BYTES
    try:
        sock.send(runs.request)
        count = _receive_some(sock, scratch, wanted, deadline_s)
        if 0 < count < wanted:
            if count >= _REPLY_BYTES and _unpack_reply(scratch)[1]:
                return False  # a refusal: there is no more to wait for
            count += sock.recv_into(scratch[count:wanted], 0, _WAIT_ALL)
        if count != wanted or _unpack_reply(scratch) != (_MAGIC, 0, length, 0):
            return False
        if not is_small:
            window = [*runs.vectors, scratch[:_TRAILER_BYTES]]
            return _receive_quick(sock, window, length + _TRAILER_BYTES, deadline_s)
    except OSError:
        return False
    start = _REPLY_BYTES
    for target in runs.vectors:
        end = start + len(target)
        target[:] = scratch[start:end]
        start = end
    return True


def _receive_some(sock: socket.socket, scratch: memoryview, wanted: int, deadline_s: float) -> int:
    """Waits for an owner that is busy: a new connection would not make it faster."""
    while True:
        try:
            return sock.recv_into(scratch, wanted)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise


class Unfinished(NamedTuple):
    """How far a WRITE came by the short way: bytes sent, bytes of the answer, and what went wrong, if anything."""

    sent: int
    received: int
    error: OSError | None


def write_quick(stream: Stream, runs: Runs) -> Unfinished | None:
    """A WRITE whose bytes follow it at once, and its answer, mostly two calls; None: done."""
    sock, header, length = stream.sock, stream.scratch[:_REPLY_BYTES], runs.length
    window: list[bytes | memoryview] = [runs.request, *runs.vectors]
    sent = received = 0
    failure: OSError | None = None
    try:
        # Several buffers cost more than copying a few bytes.
        is_small = length <= wire.MAX_INLINE
        sent = sock.send(b"".join(window)) if is_small else sock.sendmsg(window)
        if sent == len(runs.request) + length:
            received = sock.recv_into(header)
            if received == _REPLY_BYTES and header == _OK:
                stream.last_answer_s = time.monotonic()
                return None
    except BlockingIOError:
        pass
    except OSError as error:
        failure = error
    return Unfinished(sent, received, failure)


def write_rest(stream: Stream, runs: Runs, left: Unfinished, batch: Batch) -> None:
    """Go on until the answer is there."""
    if left.error is not None:
        raise left.error
    window = [memoryview(runs.request), *runs.vectors]
    wire.drop_front(window, left.sent)
    send(stream.sock, iter(window), batch)
    fill(stream.sock, iter([stream.scratch[left.received : wire.REPLY.size]]), batch)
    check_header(stream, batch, wire.REPLY.size)


def _receive_quick(
    sock: socket.socket, window: list[memoryview], wanted: int, deadline_s: float
) -> bool:
    while True:
        try:
            count = sock.recvmsg_into(window, 0, _WAIT_ALL)[0]
        except BlockingIOError:
            count = 0
        else:
            wanted -= count
            if not wanted or not count:
                return not wanted
            wire.drop_front(window, count)
        # However much comes: a peer that sends a byte a tick would else hold its reader for days.
        if time.monotonic() >= deadline_s:
            return False


def ask_small(
    stream: Stream, request: bytes, length: int, batch: Batch
) -> tuple[memoryview, int, int]:
    """A READ answered with one send: (payload, word before, word after); the payload is in the scratch."""
    sock, scratch = stream.sock, stream.scratch
    try:
        is_sent = sock.send(request) == len(request)
    except BlockingIOError:
        is_sent = False
    if not is_sent:
        raise ConnectionAbortedError("the peer does not take a request")
    start, end = wire.REPLY.size, wire.REPLY.size + length
    wanted, have = end + wire.TRAILER.size, 0
    word: int | None = None
    asked_s = time.monotonic()
    while have < wanted:
        try:
            count = sock.recv_into(scratch[have:wanted])
        except BlockingIOError:
            batch.check_stall(asked_s)
            continue
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        have += count
        if word is None and have >= start:
            announced, word = check_header(stream, batch, have)
            if announced != length:
                raise ProtocolError(f"{describe(batch.region.address)} announced {announced} bytes")
        if have < wanted:
            batch.remaining_s()
    magic, after = wire.TRAILER.unpack(scratch[end:wanted])
    if magic != wire.MAGIC or word is None:
        raise ProtocolError(f"{describe(batch.region.address)} lost step on the data connection")
    return scratch[start:end], word, after


def check_header(stream: Stream, batch: Batch, have: int) -> tuple[int, int]:
    """The header at the front of the scratch; raises what a refusal says, once all of its text is there."""
    magic, status, length, word = wire.REPLY.unpack_from(stream.scratch)
    if magic != wire.MAGIC:
        raise ProtocolError(f"{describe(batch.region.address)} does not speak the data protocol")
    if status in (wire.Status.OK, wire.Status.PRIVATE):
        if status == wire.Status.PRIVATE:
            raise Private("it is not to be had that way")
        return length, word
    end = wire.REPLY.size + min(length, 1024)
    fill(stream.sock, iter([stream.scratch[min(have, end) : end]]), batch)
    text = bytes(stream.scratch[wire.REPLY.size : end]).decode(errors="replace")
    raise refusal(status, f"{describe(batch.region.address)}: {text}")


class Refusal(Exception):
    """The peer answered no: `error` is for the caller, the connection stays good."""

    def __init__(self, error: TransferError | Exhausted) -> None:
        super().__init__(str(error))
        self.error = error


class Private(Exception):  # an answer, not an error: another way must be taken
    """The peer answered that this memory must be streamed."""


def refusal(status: int, message: str) -> Refusal:
    if status == wire.Status.STALE_EPOCH:
        return Refusal(StaleEpoch(message))
    if status == wire.Status.FORBIDDEN:
        return Refusal(BadCapability(message))
    if status == wire.Status.FULL:
        return Refusal(Exhausted(f"{message}the owner's queue of notifications is full"))
    return Refusal(TransferError(message))


def send(sock: socket.socket, vectors: Iterator[memoryview], batch: Batch) -> None:
    """Gather straight from memory until the batch's deadline or cancel."""
    moved_s = time.monotonic()
    for window in wire.windows(vectors):
        while window:
            batch.remaining_s()
            try:
                count = wire.send_window(sock, window)
            except BlockingIOError:
                batch.check_stall(moved_s)
                continue
            wire.drop_front(window, count)
            moved_s = time.monotonic()


def fill(sock: socket.socket, vectors: Iterator[memoryview], batch: Batch) -> None:
    """Scatter straight into memory until the batch's deadline or cancel."""
    for window in wire.windows(vectors):
        fill_window(sock, window, batch)


def fill_window(sock: socket.socket, window: list[memoryview], batch: Batch) -> None:
    """The same for what one call can take; nothing of it is left in `window`."""
    moved_s = time.monotonic()
    while window:
        try:
            count = wire.receive_window(sock, window)
        except BlockingIOError:
            batch.check_stall(moved_s)
            continue
        if count == 0:
            raise ConnectionResetError("the peer closed the connection")
        wire.drop_front(window, count)
        moved_s = time.monotonic()
        if window:
            batch.remaining_s()
