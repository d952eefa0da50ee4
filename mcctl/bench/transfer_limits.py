"""What `mcctl bench transfer` measures in turns with the engine: a memcpy loop, and plain Python sockets.

Each gives one call for each of the engine's threads, which moves what a batch of that thread moves.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence

import numpy as np

from daemons.transfer import ByteArray
from daemons.transfer.transports import sockets
from daemons.transfer.transports.tcp import streams_for
from mcctl.bench.transfer_peer import REQUEST, TAKEN, receive

Move = Callable[[], None]


def memcpy(all_locals: Sequence[ByteArray], size_bytes: int) -> list[Move]:
    """Blocks of so many bytes, one after the other, within this process."""
    total = all_locals[0].nbytes
    source = np.ones(total, np.uint8)

    def copy(target: ByteArray) -> None:
        for start in range(0, total, size_bytes):
            end = start + size_bytes
            np.copyto(target[start:end], source[start:end])

    return [lambda target=local: copy(target) for local in all_locals]  # type: ignore[misc]  # bound now


def plain_sockets(
    stack: contextlib.ExitStack, port: int, all_locals: Sequence[ByteArray], is_write: bool
) -> list[Move]:
    """As many streams as a batch uses, each asked for its share or sent it; the stack closes them."""
    num_streams = streams_for(all_locals[0].nbytes, is_within_host=True)
    ask = _write if is_write else _read
    moves: list[Move] = []
    for local in all_locals:
        socks = [stack.enter_context(_connect(port)) for _ in range(num_streams)]
        moves.append(lambda socks=socks, local=local: _run_all(ask, socks, local.data))  # type: ignore[misc]  # bound now
    return moves


def _read(sock: socket.socket, target: memoryview, offset: int) -> None:
    sock.sendall(REQUEST.pack(offset, len(target), 0))
    receive(sock, target)


def _write(sock: socket.socket, source: memoryview, offset: int) -> None:
    sock.sendall(REQUEST.pack(offset, len(source), 1))
    sock.sendall(source)
    receive(sock, memoryview(bytearray(len(TAKEN))))


def _run_all(
    ask: Callable[[socket.socket, memoryview, int], None],
    socks: Sequence[socket.socket],
    memory: memoryview,
) -> None:
    share = len(memory) // len(socks)
    others = [
        threading.Thread(target=ask, args=(sock, memory[i * share : (i + 1) * share], i * share))
        for i, sock in enumerate(socks[1:], 1)
    ]
    for other in others:
        other.start()
    ask(socks[0], memory[:share], 0)
    for other in others:
        other.join()


def _connect(port: int) -> socket.socket:
    sock = socket.socket()
    sockets.set_buffers(sock, sockets.LOCAL_BUFFER_BYTES)
    sock.connect(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
