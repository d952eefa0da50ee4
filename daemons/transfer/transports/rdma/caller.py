"""One peer's connection to the control port, and the queue pairs that live as long as it does."""

import contextlib
import socket
from dataclasses import dataclass, field

from daemons.transfer.transports.rdma import messages
from daemons.transfer.transports.rdma.queue_pair import QueuePair

_KEEPALIVE = (
    (socket.SO_KEEPALIVE, socket.SOL_SOCKET, 1),
    (socket.TCP_KEEPIDLE, socket.IPPROTO_TCP, 5),
    (socket.TCP_KEEPINTVL, socket.IPPROTO_TCP, 2),
    (socket.TCP_KEEPCNT, socket.IPPROTO_TCP, 3),
    (socket.TCP_USER_TIMEOUT, socket.IPPROTO_TCP, 11_000),
    (socket.TCP_NODELAY, socket.IPPROTO_TCP, 1),
)


@dataclass(slots=True, eq=False)
class Caller:
    """The port's thread reads and answers; whoever cuts it off holds the port's lock."""

    sock: socket.socket
    since_s: float
    frame: bytearray = field(default_factory=bytearray)
    epoch: int | None = None
    """The caller's own, once it has said hello."""
    nonce: bytes = b""
    public: str = ""
    """Its key, of a daemon with keys."""
    is_admitted: bool = False
    queue_pairs: dict[tuple[int, int], QueuePair] = field(default_factory=dict)
    """By device index and number: devices count each for itself."""
    opened: set[int] = field(default_factory=set)
    is_cut: bool = False
    """What it sent before that is not served any more."""


def set_keepalive(sock: socket.socket) -> None:
    """A peer whose host died is noticed within some 11 s even when nothing is asked of it."""
    for option, level, value in _KEEPALIVE:
        sock.setsockopt(level, option, value)


def take_frames(frame: bytearray) -> list[bytes]:
    """Whole payloads, taken off the front."""
    payloads = []
    while len(frame) >= messages.HEADER.size:
        end = messages.HEADER.size + messages.payload_length(frame)
        if len(frame) < end:
            break
        payloads.append(bytes(frame[messages.HEADER.size : end]))
        del frame[:end]
    return payloads


def destroy_queue_pairs(caller: Caller) -> None:
    """On return nothing that it has under way can touch this process's memory."""
    while caller.queue_pairs:
        caller.queue_pairs.popitem()[1].close()


def shut(sock: socket.socket) -> None:
    """Whoever waits on it sees its end; it is still to be closed."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
