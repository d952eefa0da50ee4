"""Frames into and out of a socket, at a fraction of what the library's own multipart calls cost."""

from collections.abc import Sequence
from typing import Final

import zmq

_NOW: Final = int(zmq.DONTWAIT)
_NOW_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_EVENTS: Final = int(zmq.EVENTS)
_READABLE: Final = int(zmq.POLLIN)


def send_frames(socket: "zmq.Socket[bytes]", frames: Sequence[bytes]) -> None:
    """All or nothing. Raises zmq.Again and other ZMQErrors."""
    for frame in frames[:-1]:
        socket.send(frame, _NOW_MORE)
    socket.send(frames[-1], _NOW)


def receive(socket: "zmq.Socket[bytes]") -> list[zmq.Frame]:
    """The next message. Raises zmq.Again where there is none. A frame knows whether another follows: no asking."""
    return _with_rest(socket, socket.recv(_NOW, copy=False))


def receive_routed(socket: "zmq.Socket[bytes]") -> tuple[bytes, list[zmq.Frame]]:
    """The same of a ROUTER: which connection, and what it sent, which is one frame at least."""
    peer: bytes = socket.recv(_NOW)
    return peer, _with_rest(socket, socket.recv(_NOW, copy=False))


def await_message(socket: "zmq.Socket[bytes]") -> list[zmq.Frame]:
    """The same, after waiting for it as long as the socket's RCVTIMEO says: the cheapest wait there is."""
    return _with_rest(socket, socket.recv(0, copy=False))


def _with_rest(socket: "zmq.Socket[bytes]", part: zmq.Frame) -> list[zmq.Frame]:
    parts = [part]
    while part.more:
        part = socket.recv(_NOW, copy=False)
        parts.append(part)
    return parts


def has_more(socket: "zmq.Socket[bytes]") -> bool:
    """Whether a message waits. To ask is much cheaper than the exception that tells there is none."""
    return bool(int(socket.getsockopt(_EVENTS)) & _READABLE)
