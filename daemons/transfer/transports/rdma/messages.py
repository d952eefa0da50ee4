"""What two engines say over a control connection to set up queue pairs and to hand out keys, and how it is framed.

    frame  magic, length of the payload; payload: one msgpack message

Keys open whole regions, so they travel only here. A reader treats every byte as hostile.
"""

import ipaddress
import socket
import struct

import msgspec

from daemons.core.errors import ProtocolError
from daemons.protocol.base import MALFORMED
from daemons.transfer.transports.sockets import receive_exactly

MAGIC = b"MCr1"
HEADER = struct.Struct("<4sI")
MAX_PAYLOAD_BYTES = 1 << 20


class _Message(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower):
    """Fields are added with a default; never renamed, retyped or reused."""


class DeviceAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A port as its peer must know it. `mtu` is the verbs code (5: 4096 bytes)."""

    name: str
    gid: str
    lid: int
    mtu: int
    is_ethernet: bool
    max_reads: int
    """READs it can serve at once on one queue pair."""
    max_reads_out: int
    """READs it can have under way on one queue pair."""


class QueuePairAddress(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    sequence: int
    """First packet sequence number, 24 bits."""


class Hello(_Message, frozen=True, kw_only=True):
    """First on a connection. `epoch` is the life of the peer that the caller means."""

    epoch: int
    caller_epoch: int


class HelloReply(_Message, frozen=True, kw_only=True):
    devices: list[DeviceAddress]


class Connect(_Message, frozen=True, kw_only=True):
    """Make a queue pair on your device `device_index` for mine, ready to serve."""

    device_index: int
    device: DeviceAddress
    queue_pair: QueuePairAddress
    num_reads: int


class ConnectReply(_Message, frozen=True, kw_only=True):
    queue_pair: QueuePairAddress


class Disconnect(_Message, frozen=True, kw_only=True):
    """Destroy your queue pair; once answered, nothing can arrive over it any more."""

    device_index: int
    number: int


class OpenRegion(_Message, frozen=True, kw_only=True):
    region_id: int


class OpenRegionReply(_Message, frozen=True, kw_only=True):
    """`keys[i]` are device i's, one for each `chunk_bytes` of the region; none where it could not register it."""

    address: int
    size_bytes: int
    chunk_bytes: int
    keys: list[list[int]]
    is_writable: bool = False


class Notify(_Message, frozen=True, kw_only=True):
    """Put a message about a region into your queue."""

    region_id: int
    message: bytes


class Answer(_Message, frozen=True, kw_only=True):
    """To a Challenge: proves that the caller is a daemon of the cluster."""

    mac: bytes


class Challenge(_Message, frozen=True, kw_only=True):
    """To a hello, where keys are for daemons of the cluster only."""

    nonce: bytes
    shown: bytes = b""
    """Who is asking, where each daemon has a key of its own."""


class Done(_Message, frozen=True, kw_only=True):
    pass


class Refused(_Message, frozen=True, kw_only=True):
    """`is_stale`: the caller means another life of this process. `is_full`: there is no room for it now."""

    message: str
    is_stale: bool = False
    is_full: bool = False


Request = Hello | Answer | Connect | Disconnect | OpenRegion | Notify
Reply = HelloReply | Challenge | ConnectReply | OpenRegionReply | Done | Refused

_encoder = msgspec.msgpack.Encoder()
_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode


def encode(message: Request | Reply) -> bytes:
    payload = _encoder.encode(message)
    return HEADER.pack(MAGIC, len(payload)) + payload


def problem_of_device(device: DeviceAddress) -> str:
    """What is wrong with a peer's numbers, which go into C structs next; empty where nothing is."""
    try:
        gid = ipaddress.IPv6Address(device.gid)
    except ValueError:
        return f"{device.gid!r} is no GID"
    if gid.scope_id is not None:
        return f"{device.gid!r} is no GID"
    in_range = (
        1 <= device.mtu <= 5
        and 0 <= device.lid < 1 << 16
        and min(device.max_reads, device.max_reads_out) >= 1
    )
    return "" if in_range else "a number of the device is out of range"


def problem_of_queue_pair(address: QueuePairAddress) -> str:
    """As `problem_of_device`."""
    is_good = 0 < address.number < 1 << 24 and 0 <= address.sequence < 1 << 24
    return "" if is_good else "a number of the queue pair is out of range"


def problem_of_region(reply: OpenRegionReply, num_devices: int) -> str:
    """As `problem_of_device`."""
    if reply.chunk_bytes <= 0 or reply.size_bytes < 0 or reply.address < 0:
        return "it does not say where the region lies"
    if reply.address + reply.size_bytes >= 1 << 64 or len(reply.keys) != num_devices:
        return "it does not say where the region lies"
    num_chunks = -(-reply.size_bytes // reply.chunk_bytes)
    if any(keys and len(keys) != num_chunks for keys in reply.keys):
        return "it told a wrong number of keys"
    is_good = all(0 <= key < 1 << 32 for keys in reply.keys for key in keys)
    return "" if is_good else "a key is out of range"


def payload_length(header: bytes | bytearray) -> int:
    """Bytes after the header; raises ProtocolError for what no peer of ours sends."""
    magic, length = HEADER.unpack_from(header)
    if magic != MAGIC or not 0 < length <= MAX_PAYLOAD_BYTES:
        raise ProtocolError("not an RDMA control frame")
    return int(length)


def decode_request(payload: bytes | bytearray | memoryview) -> Request:
    try:
        return _decode_request(payload)
    except MALFORMED as error:
        raise ProtocolError(f"not an RDMA control request: {error}") from error


def decode_reply(payload: bytes | bytearray) -> Reply:
    try:
        return _decode_reply(payload)
    except MALFORMED as error:
        raise ProtocolError(f"not an RDMA control reply: {error}") from error


def receive_reply(sock: socket.socket) -> Reply:
    """One whole reply, its header and the rest within the socket's timeout each."""
    header = receive_exactly(sock, HEADER.size)
    return decode_reply(receive_exactly(sock, payload_length(header)))
