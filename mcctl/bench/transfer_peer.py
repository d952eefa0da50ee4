"""The other process of `mcctl bench transfer`: lends memory, and serves plain sockets for the limit of the run.

    python -m mcctl.bench.transfer_peer UNIX_DIR REGION_BYTES TRANSPORT...

It prints what the bench needs, answers "cpu" with the CPU seconds it used, and ends with its stdin.
"""

import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from daemons.protocol.segment import RegionRef
from daemons.transfer import TransferEngine, allocate_shared
from daemons.transfer.transports import sockets

REQUEST = struct.Struct("<QQB")
"""Offset, length, and whether the asking side sends the bytes; those are acknowledged with `TAKEN`."""

TAKEN = b"taken"


class PeerAnnouncement(msgspec.Struct, frozen=True):
    """Where the bench finds both."""

    region: RegionRef
    plain_port: int


def receive(connection: socket.socket, target: memoryview) -> None:
    """All of it."""
    while target:
        target = target[connection.recv_into(target) :]


def _serve(connection: socket.socket, memory: memoryview) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        while request := connection.recv(REQUEST.size, socket.MSG_WAITALL):
            offset, length, is_write = REQUEST.unpack(request)
            if not is_write:
                connection.sendall(memory[offset : offset + length])
                continue
            receive(connection, memory[offset : offset + length])
            connection.sendall(TAKEN)


def _accept(listener: socket.socket, memory: memoryview) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(connection, memory), daemon=True).start()


def main(unix_dir: str, region_bytes: int, transports: Sequence[str]) -> None:
    memory = allocate_shared("bench", region_bytes)
    memory.array[:] = 1
    engine = TransferEngine(unix_dir=Path(unix_dir), transports=transports)
    with socket.socket() as listener:
        sockets.set_buffers(listener, sockets.LOCAL_BUFFER_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        threading.Thread(target=_accept, args=(listener, memory.view), daemon=True).start()
        told = PeerAnnouncement(
            engine.register(memory, "read-write"), int(listener.getsockname()[1])
        )
        _say(msgspec.json.encode(told).decode())
        for _ in sys.stdin:
            _say(str(time.process_time()))
        engine.close()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
