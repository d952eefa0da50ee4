"""The envelope: two frames, [header][payload]. The header is 24 bytes, little-endian:

    u8 version | u8 kind | u16 reserved | u32 deadline_ms | u64 request_id | u64 incarnation

`deadline_ms` is the budget that remains to the request, never an absolute time. `incarnation` is the sender's
idea of the master's life (0: none); see man/mc-protocol.7.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from daemons.core.errors import ProtocolError
from daemons.protocol.base import PROTOCOL_VERSION

_HEADER = struct.Struct("<BBHIQQ")
HEADER_BYTES = _HEADER.size
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""ZeroMQ drops the connection of a peer that sends more; the longest prompt's Plan is under 1 MiB."""


class Kind(IntEnum):
    REQUEST = 1
    REPLY = 2
    PART = 3
    NOTICE = 4


_KINDS = {int(kind): kind for kind in Kind}


def pack_header(
    kind: Kind,
    request_id: int,
    deadline_ms: int = 0,
    incarnation: int = 0,
    version: int = PROTOCOL_VERSION,
) -> bytes:
    """What `unpack_header` reads."""
    return _HEADER.pack(version, kind, 0, deadline_ms, request_id, incarnation)


class Header(NamedTuple):
    """As it is before and after the wire."""

    kind: Kind
    request_id: int
    deadline_ms: int = 0
    incarnation: int = 0
    version: int = PROTOCOL_VERSION

    def pack(self) -> bytes:
        return pack_header(*self)


def unpack_header(frame: bytes) -> Header:
    """Raises ProtocolError for anything that is not a header; another version is the caller's to refuse."""
    if len(frame) != HEADER_BYTES:
        raise ProtocolError(f"header has {len(frame)} bytes, expected {HEADER_BYTES}")
    version, number, _, deadline_ms, request_id, incarnation = _HEADER.unpack(frame)
    kind = _KINDS.get(number)
    if kind is None:
        raise ProtocolError(f"unknown message kind {number}")
    return Header(kind, request_id, deadline_ms, incarnation, version)
