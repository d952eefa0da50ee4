"""A server and channels in one loop, over loopback TCP; and raw sockets that say what no channel would."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from daemons.core.clock import ManualClock
from daemons.core.errors import (
    ConfigError,
    Exhausted,
    McError,
    NotFound,
    ProtocolError,
    Unavailable,
)
from daemons.core.ids import BlockHash, Incarnation, NodeId
from daemons.protocol.base import Ok, Ping
from daemons.protocol.block import FreeBlocks
from daemons.protocol.cache import CacheStat
from daemons.protocol.lookup import Match, MatchReply
from daemons.protocol.messages import Notice, Part, Reply, decode_incoming, encode
from daemons.protocol.node import Hello, HelloReply
from daemons.protocol.packed import BlockLocations
from daemons.protocol.request import Tokens
from daemons.rpc import Call, Channel, Loop, Server, SyncClient, connection
from daemons.rpc import client as client_module
from daemons.rpc.framing import Header, Kind, unpack_header

pytestmark = pytest.mark.timeout(30)


def hello() -> HelloReply:
    return HelloReply(node=NodeId("s"), role="master", incarnation=Incarnation(3))


class Outcome:
    def __init__(self) -> None:
        self.replies: list[Reply | McError] = []
        self.parts: list[Part] = []

    @property
    def error(self) -> McError:
        assert len(self.replies) == 1
        assert isinstance(self.replies[0], McError)
        return self.replies[0]


class Bench:
    """One loop with a server whose handler the test sets."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.calls: list[Call] = []
        self.handle: Callable[[Call], object] = self.calls.append
        self.server: Server | None = self.serve("tcp://127.0.0.1:*")
        self.endpoint = self.server.endpoint
        self.notices: list[Notice] = []
        self.channel = Channel(self.loop, self.endpoint, self.notices.append)

    def serve(self, bind: str) -> Server:
        self.server = Server(self.loop, bind, hello, lambda call: self.handle(call))
        return self.server

    def ask(
        self, message: msgspec.Struct, timeout_s: float = 20.0, *, wait: bool = True
    ) -> Outcome:
        got = Outcome()
        self.channel.request(
            message,  # type: ignore[arg-type]
            timeout_s=timeout_s,
            on_reply=got.replies.append,
            on_part=got.parts.append,
        )
        if wait:
            assert self.loop.run_until(lambda: bool(got.replies), timeout_s + 2)
        return got

    def stop_server(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

    def close(self) -> None:
        self.channel.close()
        self.stop_server()
        self.loop.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_replies_come_to_the_request_they_answer(bench: Bench) -> None:
    first, second = bench.ask(CacheStat(), wait=False), bench.ask(Match(hashes=[]), wait=False)
    assert bench.loop.run_until(lambda: len(bench.calls) == 2, 20)
    bench.calls[1].reply(MatchReply(locations=BlockLocations()))
    bench.calls[0].reply(Ok())
    assert bench.loop.run_until(lambda: bool(first.replies and second.replies), 20)
    assert (first.replies, second.replies) == ([Ok()], [MatchReply(locations=BlockLocations())])


def test_parts_come_before_the_reply_in_order(bench: Bench) -> None:
    def stream(call: Call) -> None:
        for token in range(50):
            call.part(Tokens(tokens=[token]))
        call.reply(Ok())
        call.part(Tokens(tokens=[99]))
        call.reply(Ok())

    bench.handle = stream
    got = bench.ask(CacheStat())
    assert got.parts == [Tokens(tokens=[token]) for token in range(50)]
    assert got.replies == [Ok()]


def test_errors_arrive_as_their_family_with_when_to_come_back(bench: Bench) -> None:
    def refuse(_: Call) -> None:
        raise NotFound("no such thing", retry_after_ms=70)

    bench.handle = refuse
    error = bench.ask(CacheStat()).error
    assert isinstance(error, NotFound)
    assert (error.message, error.retry_after_ms) == ("no such thing", 70)


def test_a_bug_in_a_handler_is_answered_and_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.handle = lambda _: 1 // 0
    assert "internal error" in bench.ask(CacheStat()).error.message
    assert "ZeroDivisionError" in caplog.text
    bench.handle = lambda call: call.reply(Ok())
    assert bench.ask(CacheStat()).replies == [Ok()]


def test_silence_ends_at_the_deadline(bench: Bench) -> None:
    began_s = time.monotonic()
    error = bench.ask(CacheStat(), 0.3).error
    assert isinstance(error, Unavailable)
    assert 0.25 < time.monotonic() - began_s < 10
    bench.calls[0].reply(Ok())
    assert bench.loop.run_until(lambda: bench.channel.num_pending == 0, 20)


def test_cancelled_request_hears_nothing(bench: Bench) -> None:
    got = Outcome()
    pending = bench.channel.request(CacheStat(), timeout_s=5, on_reply=got.replies.append)
    assert bench.loop.run_until(lambda: bool(bench.calls), 20)
    pending.cancel()
    pending.cancel()
    bench.calls[0].reply(Ok())
    bench.ask(Ping())
    assert got.replies == []


def test_notices_reach_the_connected_peer(bench: Bench) -> None:
    bench.handle = lambda call: (bench.calls.append(call), call.reply(Ok()))
    bench.ask(CacheStat())
    assert bench.server is not None
    notice = FreeBlocks(hashes=[BlockHash(b"x" * 16)])
    assert bench.server.notify(bench.calls[0].peer, notice)
    assert bench.loop.run_until(lambda: bench.notices == [notice], 20)
    assert not bench.server.notify(b"nobody", notice)
    assert bench.server.num_undeliverable == 1


def test_closed_peer_fails_what_is_pending_at_once(bench: Bench) -> None:
    got = bench.ask(CacheStat(), 30, wait=False)
    assert bench.loop.run_until(lambda: bool(bench.calls), 20)
    began_s = time.monotonic()
    bench.stop_server()
    assert bench.loop.run_until(lambda: bool(got.replies), 20)
    assert isinstance(got.error, Unavailable)
    assert time.monotonic() - began_s < 10


def test_nobody_listening_is_said_within_a_second(bench: Bench) -> None:
    bench.stop_server()
    began_s = time.monotonic()
    assert isinstance(bench.ask(CacheStat(), 30).error, Unavailable)
    assert time.monotonic() - began_s < 15


def test_many_losses_in_a_row_never_stop_the_loop(bench: Bench) -> None:
    """Each lost socket is taken down while its monitor still talks; that once blocked for ever."""
    bench.ask(Ping())
    bench.stop_server()
    hasty = Channel(bench.loop, bench.endpoint, connect_timeout_s=0.02)
    lost: list[Reply | McError] = []
    for num_asked in range(1, 61):
        hasty.request(CacheStat(), timeout_s=5, on_reply=lost.append)
        assert bench.loop.run_until(lambda wanted=num_asked: len(lost) == wanted, 20)  # type: ignore[misc]
    assert all(isinstance(reply, Unavailable) for reply in lost)
    hasty.close()
    bench.serve(bench.endpoint)
    assert bench.ask(Ping()).replies == [Ok()]


def test_server_back_on_the_same_port_is_met_again(bench: Bench) -> None:
    bench.handle = lambda call: call.reply(Ok())
    assert bench.ask(CacheStat()).replies == [Ok()]
    bench.stop_server()
    assert isinstance(bench.ask(CacheStat(), 30).error, Unavailable)
    bench.serve(bench.endpoint)
    assert bench.ask(CacheStat()).replies == [Ok()]


def test_pending_requests_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_PENDING", 5)
    for _ in range(5):
        bench.ask(CacheStat(), wait=False)
    with pytest.raises(Exhausted):
        bench.ask(CacheStat(), wait=False)
    bench.channel.post(CacheStat())
    assert bench.channel.num_pending == 5


@pytest.mark.parametrize("endpoint", ["nonsense", "tcp://127.0.0.1", "tcp://127.0.0.1:x"])
def test_a_request_that_cannot_be_sent_fails_after_it_was_made(bench: Bench, endpoint: str) -> None:
    """A callback in the middle of `request` would find its caller half done."""
    got: list[Reply | McError] = []
    channel = Channel(bench.loop, endpoint)
    channel.request(CacheStat(), timeout_s=5, on_reply=got.append)
    cancelled = channel.request(CacheStat(), timeout_s=5, on_reply=got.append)
    assert not got
    cancelled.cancel()
    assert bench.loop.run_until(lambda: bool(got), 20)
    bench.loop.run_once(0.05)
    assert [type(reply) for reply in got] == [Unavailable]
    assert channel.num_pending == 0
    channel.close()


def test_a_peer_that_does_not_read_fails_requests_after_they_were_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.ask(Ping())

    def is_full(*_: object) -> None:
        raise zmq.Again

    monkeypatch.setattr(connection, "send_frames", is_full)
    got = bench.ask(CacheStat(), wait=False)
    assert not got.replies
    monkeypatch.undo()
    assert bench.loop.run_until(lambda: bool(got.replies), 20)
    assert isinstance(got.error, Unavailable)
    assert "stopped reading" in str(got.error)
    bench.handle = lambda call: call.reply(Ok())
    assert bench.ask(CacheStat()).replies == [Ok()]


def test_closed_channel_fails_its_requests_and_takes_no_more(bench: Bench) -> None:
    got = bench.ask(CacheStat(), wait=False)
    bench.channel.close()
    assert isinstance(got.error, Unavailable)
    with pytest.raises(Unavailable):
        bench.ask(CacheStat(), wait=False)


def test_a_callback_that_breaks_keeps_no_other_from_hearing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.channel.request(Ping(), timeout_s=5, on_reply=lambda _: 1 // 0)
    other = bench.ask(CacheStat(), wait=False)
    bench.channel.close()
    assert isinstance(other.error, Unavailable)
    assert "ZeroDivisionError" in caplog.text


def test_taken_port_is_one_clear_line(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="choose another address"):
        Server(bench.loop, bench.endpoint, hello, lambda _: None)


@pytest.fixture
def raw(bench: Bench) -> Iterator["zmq.Socket[bytes]"]:
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(bench.endpoint)
    yield dealer
    dealer.close()
    context.term()


def header(kind: Kind = Kind.REQUEST, **more: int) -> bytes:
    return msgspec_header(kind, **more).pack()


def msgspec_header(kind: Kind, **more: int) -> Header:
    return Header(kind, more.pop("request_id", 1), more.pop("deadline_ms", 5000), **more)


MALFORMED = [
    [b""],
    [b"", b""],
    [b"x" * 24],
    [b"x" * 24, b"y"],
    [header()],
    [header(), b"", b"more"],
    [header(), b""],
    [header(), b"\xc1"],
    [header(), b"\x91" * 100_000],
    [header(), encode({"op": "nothing"})],
    [header(), encode({"op": "match", "hashes": 7})],
    [header(version=9), encode(Ping())],
    [header(Kind.REPLY), encode(Ping())],
]


def test_malformed_messages_are_counted_and_the_server_answers_the_next(
    bench: Bench, raw: "zmq.Socket[bytes]"
) -> None:
    assert bench.server is not None
    for count, frames in enumerate(MALFORMED, 1):
        raw.send_multipart(frames)
        assert bench.loop.run_until(lambda n=count: bench.server.num_malformed == n, 20), frames  # type: ignore[misc]
    raw.send_multipart([header(request_id=77), encode(Ping())])
    answers: list[tuple[int, object]] = []

    def answered() -> bool:
        while raw.poll(0):
            frames = raw.recv_multipart()
            answers.append((unpack_header(frames[0]).request_id, decode_incoming(frames[1])))
        return bool(answers) and answers[-1] == (77, Ok())

    assert bench.loop.run_until(answered, 20)
    assert bench.calls == []
    assert bench.loop.num_errors == 0
    codes = {getattr(reply, "code", "") for _, reply in answers[:-1]}
    assert codes == {"protocol"}


def test_a_peer_that_speaks_no_zmq_harms_nobody(bench: Bench) -> None:
    host, port = bench.endpoint.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        bench.handle = lambda call: call.reply(Ok())
        assert bench.ask(CacheStat()).replies == [Ok()]


def test_malformed_reply_is_a_protocol_error_for_all_that_is_pending() -> None:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    loop = Loop()
    channel = Channel(loop, f"tcp://127.0.0.1:{port}")
    got = Outcome()
    channel.request(CacheStat(), timeout_s=5, on_reply=got.replies.append)
    assert loop.run_until(lambda: bool(router.poll(0)), 20)
    peer = router.recv_multipart()[0]
    router.send_multipart([peer, b"nonsense"])
    assert loop.run_until(lambda: bool(got.replies), 20)
    assert isinstance(got.error, ProtocolError)
    channel.close()
    loop.close()
    router.close()
    context.term()


def test_requests_that_waited_through_a_stall_are_refused_as_stale() -> None:
    clock = ManualClock(10.0)
    loop = Loop(clock)
    calls: list[Call] = []
    server = Server(loop, "tcp://127.0.0.1:*", hello, calls.append)
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(server.endpoint)
    loop.run_once(0)
    dealer.send_multipart([header(request_id=1, deadline_ms=2000), encode(CacheStat())])
    dealer.send_multipart([header(request_id=2, deadline_ms=60_000), encode(CacheStat())])
    time.sleep(0.3)  # real time for the bytes to arrive; the loop's clock stands still
    clock.advance(3)
    loop.run_once(100)
    assert [call.message for call in calls] == [CacheStat()]
    assert server.num_stale == 1
    assert dealer.poll(5000)
    frames = dealer.recv_multipart()
    assert unpack_header(frames[0]).request_id == 1
    assert decode_incoming(frames[1]).code == "unavailable"  # type: ignore[union-attr]
    dealer.close(0)
    context.term()
    server.close()
    loop.close()


def test_requests_that_waited_while_one_before_them_was_stopped_are_stale_too() -> None:
    """The process was stopped in the middle of answering: what it hears next waited as long."""
    clock = ManualClock(10.0)
    loop = Loop(clock)
    ran: list[int] = []

    def answer(call: Call) -> None:
        ran.append(call.incarnation)
        if len(ran) == 1:
            clock.advance(3)

    server = Server(loop, "tcp://127.0.0.1:*", hello, answer)
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(server.endpoint)
    loop.run_once(0)
    for request_id, deadline_ms in ((1, 2000), (2, 2000), (3, 60_000)):
        dealer.send_multipart(
            [header(deadline_ms=deadline_ms, incarnation=request_id), encode(CacheStat())]
        )
    time.sleep(0.3)  # real time for the bytes to arrive; the loop's clock stands still
    loop.run_once(100)
    dealer.send_multipart([header(deadline_ms=2000, incarnation=4), encode(CacheStat())])
    time.sleep(0.3)
    loop.run_once(100)
    assert ran == [1, 3]
    assert server.num_stale == 2
    dealer.send_multipart([header(deadline_ms=2000, incarnation=5), encode(CacheStat())])
    time.sleep(0.3)
    loop.run_once(100)
    assert ran == [1, 3, 5], "the stall is over"
    dealer.close(0)
    context.term()
    server.close()
    loop.close()


SERVER = """
from daemons.core.ids import Incarnation, NodeId
from daemons.protocol.base import Ok
from daemons.protocol.node import HelloReply
from daemons.rpc import Loop, Server
loop = Loop()
hello = lambda: HelloReply(node=NodeId("s"), role="master", incarnation=Incarnation(1))
server = Server(loop, "tcp://127.0.0.1:*", hello, lambda call: None)
print(server.endpoint, flush=True)
loop.run()
"""


def test_stopped_server_is_noticed_by_missed_beats() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    assert process.stdout is not None
    try:
        endpoint = process.stdout.readline().decode().strip()
        loop = Loop()
        channel = Channel(loop, endpoint)
        got: list[Reply | McError] = []
        channel.request(CacheStat(), timeout_s=60, on_reply=got.append)
        assert not loop.run_until(lambda: bool(got), 3.5), "a live server that is slow is not gone"
        process.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        assert loop.run_until(lambda: bool(got), 20)
        assert isinstance(got[0], Unavailable)
        assert "beats" in got[0].message
        assert time.monotonic() - began_s < 30
        channel.close()
        loop.close()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_sync_client_streams_then_replies_and_raises() -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SERVER.replace(
                "lambda call: None",
                "lambda call: (call.part(__import__('daemons.protocol.request',"
                " fromlist=['x']).Tokens(tokens=[1])), call.reply(Ok()))",
            ),
        ],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    try:
        endpoint = process.stdout.readline().decode().strip()
        with SyncClient(endpoint, 5) as client:
            assert client.request(Ping()) == Ok()
            assert isinstance(client.request(Hello()), HelloReply)
            assert list(client.stream(CacheStat())) == [Tokens(tokens=[1]), Ok()]
            process.kill()
            process.wait()
            with pytest.raises(Unavailable):
                client.request(Ping(), 2)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
