"""Frames of the data port, shared by TCP and UNIX sockets: a fixed header, ranges, a capability, a body.

    request  magic op flags num_ranges capability_bytes body_bytes epoch region generation-region generation-index
             [range...] [capability] [body]
             (WRITE only) the bytes of its ranges
    reply    magic status length word    payload    (READ only) magic word-after

One request at a time on a connection. Everything read from a socket is hostile until it is checked here; what does
not parse closes the connection.
"""

import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from daemons.core.errors import ProtocolError
from daemons.protocol.segment import Strided
from daemons.transfer.strided import length_of

MAGIC = b"MCd3"
MAX_RANGES = 512
MAX_ROWS = 1 << 20
"""Per request: bounds what one frame can make the server do."""

MAX_INLINE = 16 << 10
"""A READ up to here is answered with one send and passes through a buffer at both ends: cheaper than two calls."""

MAX_EAGER = 8 << 20
"""A WRITE up to here sends its bytes unasked; what is refused is read and thrown away."""

MAX_BODY = 128 << 10
TOKEN_BYTES = 16
MAX_CAPABILITY = 64 << 10

REQUEST = struct.Struct("<4sBBHIIQQQQ")
RANGE = struct.Struct("<QQQQ")
QUICK = struct.Struct("<4sBBHIIQQQQQQQQ")
"""A request and its only range: what most are, packed and parsed in one call at both ends."""

_unpack_range = RANGE.unpack_from
REPLY = struct.Struct("<4sBxxxQQ")
TRAILER = struct.Struct("<4sxxxxQ")

_WINDOW_BYTES = 4 << 20
"""Moved with one call: a cancel is noticed between calls. With 1 MiB, 5 to 15 % of the rate were lost between them."""

_WINDOW_SLACK = 64 << 10
"""What is left of a round size behind a header rides along."""

_WINDOW_VECTORS = 512
"""Vectors a call: below IOV_MAX (1024), and few enough that a partial send wastes little."""


class Op(IntEnum):
    READ = 1
    MAP = 2
    """UNIX sockets only: the reply carries a read-only descriptor of the region."""

    WRITE = 3
    """The bytes follow the request at once; the reply says that they are readable."""

    STREAM = 4
    """WRITE of more: the bytes follow once the reply says OK, and a second reply says that they are readable."""

    PULL = 5
    """WRITE done by the target: the body says which memory of the writer it should read."""

    NOTIFY = 6
    """The body is a message to the owner."""

    AUTH = 7
    """Without a body: asks for a nonce. With one: the answer to it, which makes the peer a daemon."""

    PIN = 8
    UNPIN = 9
    """UNIX sockets only; pins end with the connection."""

    NAME = 10
    """The body is a token of the writer's choice for this connection."""

    FENCE = 11
    """The body is the token of another connection: end it. OK: nothing that came over it can land any more."""


WITH_RANGES = frozenset((Op.READ, Op.WRITE, Op.STREAM, Op.PULL))


class Status(IntEnum):
    OK = 0
    STALE_EPOCH = 1
    REFUSED = 2
    """Unknown region, ranges outside of it, not registered for WRITE; the payload says which."""

    PRIVATE = 3
    """MAP of memory that cannot be mapped, or PULL of memory that cannot be read: stream it instead.

    After a MAP `word` is the address for cross-memory reads, 0 where they are not allowed.
    """

    FORBIDDEN = 4
    """The capability does not allow it."""

    FULL = 5
    """The owner takes no more notifications now."""


@dataclass(frozen=True, slots=True)
class Request:
    op: Op
    epoch: int
    region_id: int
    generation: tuple[int, int] | None = None
    """(region, index) of the word to report before and after."""
    ranges: tuple[Strided, ...] = ()
    capability: bytes = b""
    body: bytes = b""


def encode_request(request: Request) -> bytes:
    region, index = request.generation or (0, 0)
    parts = [
        REQUEST.pack(
            MAGIC,
            request.op,
            request.generation is not None,
            len(request.ranges),
            len(request.capability),
            len(request.body),
            request.epoch,
            request.region_id,
            region,
            index,
        )
    ]
    parts += [RANGE.pack(r.offset, r.row_bytes, r.num_rows, r.stride_bytes) for r in request.ranges]
    parts += [request.capability, request.body]
    return b"".join(parts)


def plain_request(
    op: int, epoch: int, region_id: int, spans: Sequence[tuple[object, int, int]]
) -> bytes:
    """A READ or WRITE of contiguous (_, start, end) without generation or capability, packed in two calls."""
    numbers: list[int] = []
    for _, start, end in spans:
        numbers += (start, end - start, 1, 0)
    count = len(spans)
    header = REQUEST.pack(MAGIC, op, 0, count, 0, 0, epoch, region_id, 0, 0)
    return header + struct.pack(f"<{4 * count}Q", *numbers)


def request_length(header: bytes | bytearray) -> int:
    """Bytes of the whole request; raises ProtocolError for what no peer of ours sends."""
    magic, op, flags, num_ranges, num_capability, num_body, *_ = REQUEST.unpack_from(header)
    if magic != MAGIC or not Op.READ <= op <= Op.FENCE or flags > 1:
        raise ProtocolError("not a data request")
    if (num_ranges > 0) != (op in WITH_RANGES) or num_ranges > MAX_RANGES:
        raise ProtocolError(f"{num_ranges} ranges in a data request")
    if num_capability > MAX_CAPABILITY or num_body > MAX_BODY:
        raise ProtocolError(f"{num_capability} + {num_body} bytes behind a data request")
    return int(REQUEST.size + RANGE.size * num_ranges + num_capability + num_body)


def decode_request(frame: bytes | bytearray) -> Request:
    """Parse a frame of `request_length` bytes. Bounds against the region are the server's to check."""
    _, op, flags, num_ranges, num_capability, _, epoch, region_id, *generation = (
        REQUEST.unpack_from(frame)
    )
    end = REQUEST.size + RANGE.size * num_ranges
    ranges = tuple(
        Strided(offset=offset, row_bytes=row_bytes, num_rows=num_rows, stride_bytes=stride_bytes)
        for offset, row_bytes, num_rows, stride_bytes in RANGE.iter_unpack(
            memoryview(frame)[REQUEST.size : end]
        )
    )
    if sum([r.num_rows for r in ranges]) > MAX_ROWS:
        raise ProtocolError("too many rows in a data request")
    if op == Op.WRITE and length_of(ranges) > MAX_EAGER:
        raise ProtocolError("too many bytes behind a data request")
    return Request(
        op=Op(op),
        epoch=epoch,
        region_id=region_id,
        generation=(generation[0], generation[1]) if flags else None,
        ranges=ranges,
        capability=bytes(frame[end : end + num_capability]),
        body=bytes(frame[end + num_capability :]),
    )


def runs_in(frame: bytes, count: int, memory: memoryview) -> list[memoryview] | None:
    """The bytes that the ranges of a request name; None unless each is one run inside the memory. Kept short."""
    size_bytes = memory.nbytes
    if count == 1:  # as most are
        if len(frame) < QUICK.size:
            return None
        offset, row_bytes, num_rows, _ = _unpack_range(frame, REQUEST.size)
        end = offset + row_bytes
        return [memory[offset:end]] if num_rows == 1 and row_bytes and end <= size_bytes else None
    runs = []
    packed = memoryview(frame)[REQUEST.size : REQUEST.size + RANGE.size * count]
    if not count or len(packed) != RANGE.size * count:
        return None
    for offset, row_bytes, num_rows, _ in RANGE.iter_unpack(packed):
        end = offset + row_bytes
        if num_rows != 1 or not row_bytes or end > size_bytes:
            return None
        runs.append(memory[offset:end])
    return runs


def reply(status: Status, length: int = 0, word: int = 0) -> bytes:
    return REPLY.pack(MAGIC, status, length, word)


def windows(vectors: Iterator[memoryview]) -> Iterator[list[memoryview]]:
    """Lists fit for one sendmsg or recvmsg_into; a long vector is cut."""
    window: list[memoryview] = []
    size = 0
    for whole in vectors:
        vector, length = whole, whole.nbytes
        while size + length > _WINDOW_BYTES + _WINDOW_SLACK:
            window.append(vector[: _WINDOW_BYTES - size])
            vector = vector[_WINDOW_BYTES - size :]
            length = vector.nbytes
            yield window
            window, size = [], 0
        if length:
            window.append(vector)
            size += length
        if len(window) == _WINDOW_VECTORS:
            yield window
            window, size = [], 0
    if window:
        yield window


def drop_front(window: list[memoryview], count: int) -> None:
    """Forget `count` bytes that were moved."""
    done = 0
    for vector in window:
        length = vector.nbytes
        if count < length:
            break
        count -= length
        done += 1
    del window[:done]
    if count:
        window[0] = window[0][count:]


def send_window(sock: socket.socket, window: list[memoryview]) -> int:
    return sock.sendmsg(window)


def receive_window(sock: socket.socket, window: list[memoryview]) -> int:
    """Waits for all of it or the socket's own timeout; 0 is the end of the connection."""
    return sock.recvmsg_into(window, 0, socket.MSG_WAITALL)[0]
