"""Frames of the data port, shared by TCP and UNIX sockets: a fixed header, then ranges; replies end in a trailer.

    request  magic op flags num_ranges epoch region_id generation_region generation_index [range...]
    reply    magic status length generation   payload   magic generation-after

Everything read from a socket is hostile until it is checked here; what does not parse closes the connection.
"""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from daemons.core.errors import ProtocolError
from daemons.protocol.segment import Strided

MAGIC = b"MCd1"
MAX_RANGES = 512
MAX_ROWS = 1 << 20
"""Per request: bounds what one frame can make the server do."""

REQUEST = struct.Struct("<4sBBHQQQQ")
RANGE = struct.Struct("<QQQQ")
REPLY = struct.Struct("<4sBxxxQQ")
TRAILER = struct.Struct("<4sxxxxQ")

_WINDOW_BYTES = 4 << 20
_WINDOW_VECTORS = 512
"""Vectors a call: below IOV_MAX (1024), and few enough that a partial send wastes little."""


class Op(IntEnum):
    READ = 1
    MAP = 2
    """UNIX sockets only: the reply carries a read-only descriptor of the region."""


class Status(IntEnum):
    OK = 0
    STALE_EPOCH = 1
    REFUSED = 2
    """Unknown region or ranges outside of it; the payload says which."""
    PRIVATE = 3
    """MAP of memory that cannot be mapped: READ it instead."""


@dataclass(frozen=True, slots=True)
class Request:
    op: Op
    epoch: int
    region_id: int
    generation: tuple[int, int] | None
    """(region, index) of the word to report before and after."""
    ranges: tuple[Strided, ...]


def encode_request(request: Request) -> bytes:
    region, index = request.generation or (0, 0)
    header = REQUEST.pack(
        MAGIC,
        request.op,
        request.generation is not None,
        len(request.ranges),
        request.epoch,
        request.region_id,
        region,
        index,
    )
    return header + b"".join(
        RANGE.pack(r.offset, r.row_bytes, r.num_rows, r.stride_bytes) for r in request.ranges
    )


def request_length(header: bytes | bytearray) -> int:
    """Bytes of the whole request; raises ProtocolError for what no peer of ours sends."""
    magic, op, flags, num_ranges, *_ = REQUEST.unpack_from(header)
    if magic != MAGIC or op not in (Op.READ, Op.MAP) or flags > 1:
        raise ProtocolError("not a data request")
    if (num_ranges == 0) != (op == Op.MAP) or num_ranges > MAX_RANGES:
        raise ProtocolError(f"{num_ranges} ranges in a data request")
    return REQUEST.size + RANGE.size * int(num_ranges)


def decode_request(frame: bytes | bytearray) -> Request:
    """Parse a frame of `request_length` bytes. Bounds against the region are the server's to check."""
    _, op, flags, _, epoch, region_id, *generation = REQUEST.unpack_from(frame)
    ranges = tuple(
        Strided(offset=offset, row_bytes=row_bytes, num_rows=num_rows, stride_bytes=stride_bytes)
        for offset, row_bytes, num_rows, stride_bytes in RANGE.iter_unpack(
            memoryview(frame)[REQUEST.size :]
        )
    )
    if sum(r.num_rows for r in ranges) > MAX_ROWS:
        raise ProtocolError("too many rows in a data request")
    return Request(
        op=Op(op),
        epoch=epoch,
        region_id=region_id,
        generation=(generation[0], generation[1]) if flags else None,
        ranges=ranges,
    )


def send_vectors(sock: socket.socket, vectors: Iterator[memoryview]) -> None:
    """Gather straight from memory; resumes after partial sends. The socket's timeout bounds each call."""
    for window in windows(vectors):
        while window:
            drop_front(window, sock.sendmsg(window))


def windows(vectors: Iterator[memoryview]) -> Iterator[list[memoryview]]:
    """Lists fit for one sendmsg or recvmsg_into."""
    window: list[memoryview] = []
    size = 0
    for vector in vectors:
        window.append(vector)
        size += vector.nbytes
        if size >= _WINDOW_BYTES or len(window) == _WINDOW_VECTORS:
            yield window
            window, size = [], 0
    if window:
        yield window


def drop_front(window: list[memoryview], count: int) -> None:
    """Forget `count` bytes that were moved."""
    done = 0
    for vector in window:
        if count < vector.nbytes:
            break
        count -= vector.nbytes
        done += 1
    del window[:done]
    if count:
        window[0] = window[0][count:]
