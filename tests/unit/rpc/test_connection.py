"""The connection below a channel, against a bare ROUTER: what is sent when, and who hears of a loss."""

import socket
from collections.abc import Iterator

import pytest
import zmq

from daemons.core.errors import McError, Rejected, Unavailable
from daemons.core.ids import PublicKey
from daemons.protocol.address import with_key
from daemons.rpc import Loop
from daemons.rpc.connection import Connection

pytestmark = pytest.mark.timeout(60)


class Heard:
    """Greets whoever is connected, and remembers the rest."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.frames: list[list[bytes]] = []
        self.lost: list[McError] = []
        self.lost_soon: list[McError] = []

    def on_connected(self) -> None:
        assert self.connection is not None
        self.connection.send([b"hello", b""])

    def on_frames(self, frames: list[bytes]) -> None:
        self.frames.append(frames)

    def on_lost(self, error: McError) -> None:
        self.lost.append(error)

    def on_lost_soon(self, error: McError) -> None:
        self.lost_soon.append(error)


class Bench:
    def __init__(self) -> None:
        self.loop = Loop()
        self.server = self.loop.context.socket(zmq.ROUTER)
        self.port = self.server.bind_to_random_port("tcp://127.0.0.1")
        self.heard = Heard()
        self.connection = self.connect(f"tcp://127.0.0.1:{self.port}")

    def connect(self, endpoint: str, timeout_s: float = 20.0) -> Connection:
        self.heard.connection = Connection(self.loop, endpoint, self.heard, timeout_s)
        return self.heard.connection

    def receive(self) -> tuple[bytes, bytes]:
        """(sender, first frame)."""
        assert self.loop.run_until(lambda: bool(self.server.poll(0)), 20)
        sender, first, _ = self.server.recv_multipart()
        return sender, first


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.connection.drop()
    made.server.close(0)
    made.loop.close()


def test_what_waits_for_the_handshake_goes_after_the_greeting(bench: Bench) -> None:
    bench.connection.send([b"lost", b""])
    bench.connection.open()
    bench.connection.send([b"first", b""])
    bench.connection.send([b"second", b""])
    assert not bench.connection.is_up
    said = [bench.receive() for _ in range(3)]
    assert [first for _, first in said] == [b"hello", b"first", b"second"]
    assert bench.connection.is_up
    bench.server.send_multipart([said[0][0], b"answer", b"body"])
    assert bench.loop.run_until(lambda: bool(bench.heard.frames), 20)
    assert bench.heard.frames == [[b"answer", b"body"]]


def test_a_peer_that_closes_is_lost_once_and_the_next_connection_is_another_socket(
    bench: Bench,
) -> None:
    bench.connection.open()
    bench.receive()
    before = bench.connection.socket
    bench.server.close(0)
    assert bench.loop.run_until(lambda: bool(bench.heard.lost), 20)
    (error,) = bench.heard.lost
    assert isinstance(error, Unavailable)
    assert (bench.connection.is_up, bench.connection.socket) == (False, None)
    bench.connection.open()
    assert bench.connection.socket is not before


def test_what_waited_when_a_connection_was_dropped_is_not_sent_over_the_next_one(
    bench: Bench,
) -> None:
    bench.connection.open()
    bench.connection.send([b"late", b""])
    bench.connection.drop()
    assert (bench.heard.lost, bench.heard.lost_soon) == ([], []), "nobody is told"
    bench.connection.open()
    assert bench.receive()[1] == b"hello"
    bench.connection.send([b"new", b""])
    assert bench.receive()[1] == b"new"


def test_who_does_not_answer_is_lost_when_the_time_is_over(bench: Bench) -> None:
    with socket.socket() as silent:  # accepts, and never says a word
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        lonely = bench.connect(f"tcp://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)
        lonely.open()
        assert bench.loop.run_until(lambda: bool(bench.heard.lost), 20)
    (error,) = bench.heard.lost
    assert "does not answer; is it running?" in error.message
    assert lonely.socket is None


def test_who_refuses_is_lost_at_once_and_a_patient_one_tries_again(bench: Bench) -> None:
    with socket.socket() as dead:  # its port is taken, and nobody listens
        dead.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{dead.getsockname()[1]}"
        bench.connect(endpoint, timeout_s=3600.0).open()
        assert bench.loop.run_until(lambda: bool(bench.heard.lost), 20)
        assert "does not answer; is it running?" in bench.heard.lost.pop().message
        patient = Connection(bench.loop, endpoint, bench.heard, 3600.0, is_patient=True)
        patient.open()
        bench.loop.run_until(lambda: False, 0.2)
        assert patient.socket is not None, "it was refused meanwhile"
        dead.listen()
        dead.settimeout(20)
        dead.accept()[0].close()
        patient.drop()
    assert not bench.heard.lost


def test_without_a_key_of_ones_own_a_server_with_keys_is_refused_without_an_attempt(
    bench: Bench,
) -> None:
    endpoint = with_key(f"tcp://127.0.0.1:{bench.port}", PublicKey("ab" * 32))
    refused = bench.connect(endpoint)
    refused.open()
    (error,) = bench.heard.lost_soon
    assert isinstance(error, Rejected)
    assert refused.socket is None


@pytest.mark.parametrize("num_left", [0, 1, 2])
def test_where_no_socket_can_be_made_it_is_lost_and_tried_again_later(
    bench: Bench, num_left: int
) -> None:
    loop = Loop()
    loop.context.set(zmq.MAX_SOCKETS, 3)
    taken = [loop.context.socket(zmq.PAIR) for _ in range(3 - num_left)]
    endpoint = f"tcp://127.0.0.1:{bench.port}"
    poor = Connection(loop, endpoint, bench.heard, 20.0)
    bench.heard.connection = poor
    try:
        poor.open()
        (error,) = bench.heard.lost_soon
        assert isinstance(error, Unavailable)
        assert error.message == f"cannot connect to {endpoint}: Too many open files"
        assert poor.socket is None
        while taken:
            taken.pop().close(0)

        def is_up() -> bool:
            poor.open()
            return poor.is_up

        assert loop.run_until(is_up, 20)
        assert bench.receive()[1] == b"hello"
    finally:
        poor.drop()
        loop.context.destroy(0)
        loop.close()
