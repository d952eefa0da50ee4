"""The other processes of the RDMA tests. One is started; it imports everything once and forks a peer per request.

A peer owns a region of known bytes (1), a writable one (2) and generations (3), and obeys lines on its socket.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from daemons.core.ids import Epoch, new_epoch
from daemons.transfer.buffers import as_bytes
from daemons.transfer.credentials import SharedSecret
from daemons.transfer.memory import Access, Region, SharedMemory, allocate_shared
from daemons.transfer.strided import ByteArray
from daemons.transfer.transports.rdma import RdmaTransport, Retries
from daemons.transfer.transports.rdma.verbs import load

SIZE_BYTES = 4 << 20


def make_region(
    region_id: int, memory: SharedMemory | ByteArray, access: Access = "read"
) -> Region:
    array = memory.array if isinstance(memory, SharedMemory) else as_bytes(memory)
    return Region(region_id, array, array.data, None, access)


def credential_of(secret: str) -> SharedSecret | None:
    """What proves knowledge of it; none for an empty one."""
    return SharedSecret(secret.encode()) if secret else None


def known_bytes() -> ByteArray:
    return np.random.default_rng(7).integers(0, 256, SIZE_BYTES, np.uint8)


class Peer:
    def __init__(self, arguments: dict[str, Any], known: ByteArray) -> None:
        self.received: list[tuple[int, str]] = []
        self.epoch = new_epoch()
        self.transport = RdmaTransport(
            self.epoch,
            "127.0.0.1",
            deliver=self.deliver,
            device_names=arguments["devices"],
            retries=Retries(**arguments["retries"]),
            credential=credential_of(arguments["secret"]),
        )
        self.source = allocate_shared("source", SIZE_BYTES)
        self.source.array[:] = known
        self.writable = allocate_shared("writable", SIZE_BYTES)
        self.generations = allocate_shared("generations", 4096)
        self.words = self.generations.array.view("<u8")
        self.words[:] = 1
        self.transport.register(make_region(1, self.source))
        self.transport.register(make_region(2, self.writable, "read-write"))
        self.transport.register(make_region(3, self.generations))

    def deliver(self, region_id: int, message: bytes) -> bool:
        self.received.append((region_id, message.decode()))
        return True

    def advance(self, index: str) -> int:
        """Void the generation, then reuse the source."""
        self.words[int(index)] += np.uint64(1)
        self.source.array[:] = 0xEE
        return int(self.words[int(index)])

    def register(self, region_id: str) -> None:
        self.transport.register(make_region(int(region_id), np.full(1 << 20, 5, np.uint8)))

    def deregister(self, region_id: str) -> None:
        self.transport.deregister(int(region_id))

    def cut_off(self, epoch: str) -> None:
        self.transport.cut_off(Epoch(int(epoch)))

    def written(self, offset: str, length: str) -> str:
        return self.writable.array[int(offset) : int(offset) + int(length)].tobytes().hex()

    def clear(self) -> None:
        self.writable.array[:] = 0

    def served(self) -> int:
        return self.transport.num_served

    def notifications(self) -> list[tuple[int, str]]:
        return self.received


def serve(channel: socket.socket, arguments: dict[str, Any], known: ByteArray) -> None:
    with channel, channel.makefile("rw") as lines:

        def say(value: object) -> None:
            lines.write(json.dumps(value) + "\n")
            lines.flush()

        peer = Peer(arguments, known)
        say({"epoch": peer.epoch, "rdma": peer.transport.endpoint, "pid": os.getpid()})
        for line in lines:
            name, *words = line.split()
            act: Callable[..., object] = getattr(peer, name)
            say(act(*words))
        peer.transport.close()


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    load()
    known = known_bytes()
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not request:
            return
        channel = socket.socket(fileno=descriptors[0])
        if os.fork() == 0:
            control.close()
            serve(channel, json.loads(request), known)
            os._exit(0)
        channel.close()


if __name__ == "__main__":
    main()
