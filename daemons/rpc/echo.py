"""A bare ZeroMQ round trip, as the limit that benchmarks measure themselves against: `python -m daemons.rpc.echo DIR`.

A ROUTER in a process of its own gives every message back; no framing, no decoding, no loop of ours.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import zmq

from daemons.core.errors import Unavailable

_MESSAGE: Final = bytes(64)
_TIMEOUT_MS: Final = 5000


@contextmanager
def bare_round_trips() -> Iterator[Callable[[], float]]:
    """Each call makes one and gives its seconds. Raises Unavailable."""
    with tempfile.TemporaryDirectory(prefix="mce-") as directory:
        endpoint = f"tcp://127.0.0.1:{_free_port()}"
        process = subprocess.Popen(
            [sys.executable, "-m", "daemons.rpc.echo", endpoint], cwd=directory
        )
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, _TIMEOUT_MS)
        socket.connect(endpoint)

        def once() -> float:
            started_s = time.perf_counter()
            socket.send(_MESSAGE)
            try:
                socket.recv()
            except zmq.Again:
                raise Unavailable("the echo process does not answer") from None
            return time.perf_counter() - started_s

        try:
            once()
            yield once
        finally:
            context.destroy(linger=0)
            process.kill()
            process.wait()


def _free_port() -> int:
    context = zmq.Context()
    port = context.socket(zmq.ROUTER).bind_to_random_port("tcp://127.0.0.1")
    context.destroy(linger=0)
    return int(port)


def main() -> None:
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.bind(sys.argv[1])
    while True:
        socket.send_multipart(socket.recv_multipart())


if __name__ == "__main__":
    main()
