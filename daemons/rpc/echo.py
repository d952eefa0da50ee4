"""A bare ZeroMQ round trip, as the limit that benchmarks measure themselves against: `python -m daemons.rpc.echo`.

A ROUTER in a process of its own gives every message back; no framing, no decoding, no loop of ours.
"""

import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import zmq

from daemons.core.errors import Unavailable

_MESSAGE: Final = bytes(64)
_TIMEOUT_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Each call makes one and gives its seconds; raises Unavailable. `pid` is of the process at the other end."""

    pid: int
    socket: "zmq.Socket[bytes]"

    def __call__(self, message: bytes = _MESSAGE) -> float:
        started_s = time.perf_counter()
        self.socket.send(message)
        try:
            self.socket.recv()
        except zmq.Again:
            raise Unavailable("the echo process does not answer") from None
        return time.perf_counter() - started_s


@contextmanager
def bare_round_trips() -> Iterator[RoundTrips]:
    """Raises Unavailable."""
    with tempfile.TemporaryDirectory(prefix="mce-") as directory:
        process = subprocess.Popen(
            [sys.executable, "-m", "daemons.rpc.echo"], cwd=directory, stdout=subprocess.PIPE
        )
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, _TIMEOUT_MS)
        round_trip = RoundTrips(process.pid, socket)
        try:
            socket.connect(_endpoint_of(process))
            round_trip()
            yield round_trip
        finally:
            context.destroy(linger=0)
            process.kill()
            process.communicate()


def _endpoint_of(process: "subprocess.Popen[bytes]") -> str:
    """Where the process listens: its first line. Raises Unavailable."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _TIMEOUT_MS / 1000)
    line = process.stdout.readline() if ready else b""
    if not line:
        raise Unavailable("the echo process does not start")
    return line.decode().strip()


def main() -> None:
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.bind("tcp://127.0.0.1:*")
    sys.stdout.write(socket.getsockopt_string(zmq.LAST_ENDPOINT) + "\n")
    sys.stdout.flush()
    while True:
        socket.send_multipart(socket.recv_multipart())


if __name__ == "__main__":
    main()
