"""Frames into and out of a socket, at a fraction of what the library's own multipart calls cost."""

from collections.abc import Sequence
from typing import Final

import zmq
from zmq.backend import Socket, zmq_poll

_NOW: Final = int(zmq.DONTWAIT)
_NOW_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_READABLE: Final = int(zmq.POLLIN)
_send: Final = Socket.send
"""Without the library's own wrapper around it, which looks at what nobody here asks for."""


def send_frames(socket: "zmq.Socket[bytes]", frames: Sequence[bytes]) -> None:
    """All or nothing. Raises zmq.Again and other ZMQErrors."""
    *first, last = frames
    for frame in first:
        _send(socket, frame, _NOW_MORE)
    _send(socket, last, _NOW)


def receive(socket: "zmq.Socket[bytes]", flags: int = _NOW) -> list[zmq.Frame]:
    """The next message. Raises zmq.Again where there is none. A frame knows whether another follows: no asking.

    `flags` 0: it is awaited for as long as the socket's RCVTIMEO says, the cheapest wait there is.
    """
    part = socket.recv(flags, copy=False)
    parts = [part]
    while part.more:
        part = socket.recv(_NOW, copy=False)
        parts.append(part)
    return parts


def receive_routed(socket: "zmq.Socket[bytes]") -> tuple[bytes, list[zmq.Frame]]:
    """The next one of a ROUTER: which connection, and what it sent, which is one frame at least."""
    peer: bytes = socket.recv(_NOW)
    return peer, receive(socket)


def has_more(socket: "zmq.Socket[bytes]") -> bool:
    """Whether a message waits. To ask is much cheaper than the exception that tells there is none."""
    return bool(zmq_poll([(socket, _READABLE)], 0))
