"""Options and helpers of data sockets. They are blocking with a kernel timeout: Python's own costs a poll per call.

A call that waited that long raises BlockingIOError; whoever made it looks at its deadline and goes on.
"""

import ipaddress
import math
import select
import socket
import struct
import time
from collections.abc import Callable

TICK_S = 0.05
"""Longest wait of one call, so that a deadline or a cancel is noticed."""

_BUFFER_BYTES = 1 << 20
"""Measured: with more, what is in flight falls out of the CPU's cache; with less the two ends wait for each other."""

LOCAL_BUFFER_BYTES = 256 << 10
"""Between two processes of one host: no way is long, and what is in flight stays in the CPU's cache. Measured: a
third less CPU for 4 MiB than with 1 MiB."""

_KEEPALIVE_IDLE_S = 5
_KEEPALIVE_INTERVAL_S = 2
_KEEPALIVE_PROBES = 3
_LOOK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
_USER_TIMEOUT_MS = 10_000
"""Unacknowledged bytes for so long: the peer's host is gone."""


def prepare(sock: socket.socket, *, send_timeout_s: float, receive_timeout_s: float) -> None:
    """For a connected socket of either family."""
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(send_timeout_s))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(receive_timeout_s))
    if sock.family == socket.AF_UNIX:
        set_buffers(sock)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    if _is_within_host(sock):
        # The other way round it is too late: bytes may be under way for the room that was announced.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_BUFFER_BYTES)
        # There is nothing to share fairly; what the host may have chosen for its network (BBR) would pace copies.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def set_buffers(sock: socket.socket, size_bytes: int = _BUFFER_BYTES) -> None:
    """Before connect or listen, as the window scale is agreed on then; capped by net.core.*mem_max."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size_bytes)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)


def set_buffers_towards(sock: socket.socket, host: str, port: int) -> None:
    """The same for a TCP socket that is about to connect there."""
    with socket.socket(sock.family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing: the kernel says which way it would go
        set_buffers(sock, LOCAL_BUFFER_BYTES if _is_within_host(probe) else _BUFFER_BYTES)


def set_buffers_of_listener(listener: socket.socket) -> None:
    """The same for a bound one, before it listens: nobody from elsewhere comes to a loopback address."""
    is_loopback = ipaddress.ip_address(listener.getsockname()[0]).is_loopback
    set_buffers(listener, LOCAL_BUFFER_BYTES if is_loopback else _BUFFER_BYTES)


def _is_within_host(sock: socket.socket) -> bool:
    """Of a connected one: both ends have one address."""
    return bool(sock.getsockname()[0] == sock.getpeername()[0])


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    """The socket's timeout is for all of it, however slowly it comes. Raises OSError."""
    timeout_s = sock.gettimeout()
    end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    parts = bytearray()
    try:
        while len(parts) < count:
            part = sock.recv(count - len(parts))
            if not part:
                raise ConnectionResetError("the peer closed the connection")
            parts += part
            left_s = end_s - time.monotonic()
            if len(parts) < count and left_s <= 0:
                raise TimeoutError("the peer sends too slowly")
            if timeout_s is not None:
                sock.settimeout(max(left_s, 0.001))
    finally:
        sock.settimeout(timeout_s)
    return bytes(parts)


def is_open(sock: socket.socket) -> bool:
    """Whether the peer has not hung up; looks, takes nothing, does not wait."""
    try:
        return sock.recv(1, _LOOK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def hangups(sock: socket.socket) -> Callable[[int], list[tuple[int, int]]]:
    """Called with 0 it says whether the peer will send no more, even while bytes it sent before are unread."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return poll.poll


def check_room(sock: socket.socket) -> None:
    """Raise OSError when a short answer would have to wait: the peer asks but does not listen."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    if not poll.poll(0):
        raise ConnectionAbortedError("the peer does not take its answers")


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process at the other end of a UNIX socket; pid 0 when it is in no namespace of ours."""
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    pid, uid, _ = struct.unpack("iII", packed)
    return pid, uid


def shut(sock: socket.socket) -> None:
    """End it in both directions; whoever waits on it wakes up."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("ll", whole, int((seconds - whole) * 1e6))
