"""Servers with keys over loopback: who is let in, what each role may ask, and what becomes of a key that is revoked."""

import contextlib
import logging
import random
import socket
from collections.abc import Callable, Iterator

import msgspec
import pytest
from unit.protocol.test_messages import sample

from daemons.core.errors import ConfigError, McError, Rejected, Unavailable
from daemons.core.ids import Epoch, Incarnation, NodeId, PublicKey
from daemons.protocol.access import ALLOWED
from daemons.protocol.address import is_loopback, split_key, with_key
from daemons.protocol.base import Ok, Ping
from daemons.protocol.block import BlockFilter
from daemons.protocol.cache import CacheStat, ClearBlocks
from daemons.protocol.failure import Unwelcome
from daemons.protocol.key import KEY_ROLES, AllowedKey, KeyRole
from daemons.protocol.messages import Reply
from daemons.protocol.node import Beat, Hello, HelloReply, ListNodes, NodeLeft
from daemons.protocol.request import Tokens
from daemons.rpc import (
    AllowedList,
    Call,
    Channel,
    Identity,
    KeyPair,
    Loop,
    Publisher,
    Server,
    Subscriber,
)

pytestmark = pytest.mark.timeout(30)


def hello() -> HelloReply:
    return HelloReply(node=NodeId("s"), role="master", incarnation=Incarnation(3))


class Bench:
    """A server with keys on one loop; clients on another, as another process would be."""

    def __init__(self) -> None:
        self.allowed = AllowedList()
        self.loop = Loop(identity=Identity(KeyPair.generate(), self.allowed))
        self.calls: list[Call] = []
        self.server = Server(self.loop, "tcp://127.0.0.1:*", hello, self.calls.append)
        self.loops = [self.loop]
        self.channels: list[Channel] = []
        self.entries: list[AllowedKey] = []

    def authorize(self, pair: KeyPair, role: KeyRole, node: str = "n") -> None:
        self.entries.append(AllowedKey(public=pair.public, node=NodeId(node), role=role))
        self.allowed.replace(self.entries)

    def revoke(self, pair: KeyPair) -> None:
        self.entries = [entry for entry in self.entries if entry.public != pair.public]
        self.allowed.replace(self.entries)

    def connect(self, pair: KeyPair | None, endpoint: str = "") -> Channel:
        loop = Loop(identity=Identity(pair) if pair else None)
        self.loops.append(loop)
        channel = Channel(loop, endpoint or self.server.told, connect_timeout_s=2.0)
        self.channels.append(channel)
        return channel

    def turn(self, is_done: Callable[[], bool], num_turns: int = 2000) -> bool:
        for _ in range(num_turns):
            for loop in self.loops:
                loop.run_once(0.001)
            if is_done():
                return True
        return False

    def ask(self, channel: Channel, message: msgspec.Struct) -> Reply | McError:
        """Whatever reaches the server's handler is answered with Ok."""
        got: list[Reply | McError] = []
        channel.request(message, timeout_s=3.0, on_reply=got.append)  # type: ignore[arg-type]

        def is_done() -> bool:
            while self.calls:
                self.calls.pop().reply(Ok())
            return bool(got)

        assert self.turn(is_done)
        return got[0]

    def close(self) -> None:
        for channel in self.channels:
            channel.close()
        self.server.close()
        for loop in self.loops:
            loop.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_a_key_on_the_list_is_served(bench: Bench) -> None:
    pair = KeyPair.generate()
    bench.authorize(pair, "admin")
    assert bench.ask(bench.connect(pair), CacheStat()) == Ok()
    assert bench.server.num_refused == 0


def test_a_client_without_keys_gets_no_message_through_and_is_told_why(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    reply = bench.ask(bench.connect(None, bench.server.endpoint), CacheStat())
    assert isinstance(reply, Rejected | Unavailable)
    assert "for keys" in reply.message
    assert bench.turn(lambda: bench.server.num_refused > 0)
    assert "refused from=" in caplog.text


def test_a_client_without_keys_does_not_even_try_an_endpoint_that_has_one(bench: Bench) -> None:
    reply = bench.ask(bench.connect(None), CacheStat())
    assert isinstance(reply, Rejected)


def test_an_unknown_key_is_refused_at_the_handshake_and_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    pair = KeyPair.generate()
    reply = bench.ask(bench.connect(pair), CacheStat())
    assert isinstance(reply, Rejected)
    assert "mcctl keys authorize" in reply.message
    assert bench.server.num_refused > 0
    assert f"key={pair.public[:8]}" in caplog.text
    assert pair.secret.hex() not in caplog.text + repr(pair)


def test_a_server_that_only_has_the_address_is_not_talked_to(bench: Bench) -> None:
    pair = KeyPair.generate()
    bench.authorize(pair, "admin")
    pretended = with_key(bench.server.endpoint, KeyPair.generate().public)
    reply = bench.ask(bench.connect(pair, pretended), CacheStat())
    assert isinstance(reply, Unavailable)
    assert "is this its public key" in reply.message
    assert not bench.calls


def test_a_server_without_keys_on_another_host_is_not_talked_to(bench: Bench) -> None:
    reply = bench.ask(bench.connect(KeyPair.generate(), "tcp://192.0.2.1:7700"), CacheStat())
    assert isinstance(reply, Rejected)


def test_each_role_asks_what_it_may(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    cachenode, gateway = KeyPair.generate(), KeyPair.generate()
    bench.authorize(cachenode, "cachenode", "c1")
    bench.authorize(gateway, "gateway", "g1")
    clear = ClearBlocks(filter=BlockFilter())
    node = bench.connect(cachenode)
    reply = bench.ask(node, clear)
    assert isinstance(reply, Rejected)
    assert "ClearBlocks is for: admin" in reply.message
    assert isinstance(bench.ask(node, ListNodes()), Rejected)
    assert isinstance(bench.ask(bench.connect(gateway), clear), Rejected)
    assert bench.server.num_refused == 3
    assert "node=c1 role=cachenode op=ClearBlocks" in caplog.text
    assert bench.ask(node, Beat(node=NodeId("c1"), epoch=Epoch(1))) == Ok()


def test_a_member_speaks_for_itself_alone(bench: Bench) -> None:
    pair = KeyPair.generate()
    bench.authorize(pair, "cachenode", "c1")
    reply = bench.ask(bench.connect(pair), Beat(node=NodeId("c2"), epoch=Epoch(1)))
    assert isinstance(reply, Unwelcome)


@pytest.mark.parametrize("role", KEY_ROLES)
def test_each_request_reaches_a_server_from_the_roles_of_the_table_and_no_other(
    bench: Bench, role: KeyRole
) -> None:
    pair = KeyPair.generate()
    bench.authorize(pair, role, "n1")
    channel = bench.connect(pair)
    for kind, roles in ALLOWED.items():
        if kind not in (Ping, Hello) and role not in roles:
            reply = bench.ask(channel, sample(kind))
            assert isinstance(reply, Unwelcome), (role, kind)
            assert "is for: " in reply.message


def test_a_revoked_key_is_cut_off_on_its_open_connection(bench: Bench) -> None:
    pair = KeyPair.generate()
    bench.authorize(pair, "admin")
    channel = bench.connect(pair)
    assert bench.ask(channel, CacheStat()) == Ok()
    bench.revoke(pair)
    reply = bench.ask(channel, CacheStat())
    assert channel.is_connected, "the same connection"
    assert isinstance(reply, Unwelcome)
    assert "not authorized any more" in reply.message
    bench.authorize(pair, "admin")
    assert bench.ask(channel, CacheStat()) == Ok()


def test_a_stream_to_a_revoked_key_ends(bench: Bench) -> None:
    pair = KeyPair.generate()
    bench.authorize(pair, "gateway")
    parts: list[object] = []
    channel = bench.connect(pair)
    channel.request(ListNodes(), timeout_s=5, on_reply=parts.append, on_part=parts.append)
    assert bench.turn(lambda: bool(bench.calls))
    call = bench.calls.pop()
    gone: list[bool] = []
    call.on_gone = lambda: gone.append(True)
    call.part(Tokens(tokens=[1]))
    assert bench.turn(lambda: len(parts) == 1)
    bench.revoke(pair)
    call.part(Tokens(tokens=[2]))
    assert gone == [True]
    assert not bench.server.notify(call.peer, Ok())
    assert not bench.turn(lambda: len(parts) > 1, 50)


def test_a_server_whose_key_was_revoked_is_not_asked_any_more(bench: Bench) -> None:
    pair = KeyPair.generate()
    bench.authorize(pair, "gateway")
    channel = bench.connect(pair)
    assert bench.ask(channel, ListNodes()) == Ok()
    assert channel.loop.identity is not None
    server = AllowedKey(
        public=PublicKey(split_key(bench.server.told)[1] or ""), node=NodeId("d"), role="decode"
    )
    channel.loop.identity.allowed.replace([server])
    assert bench.ask(channel, ListNodes()) == Ok()
    channel.loop.identity.allowed.replace([])
    with pytest.raises(Rejected, match="was revoked"):
        bench.ask(channel, ListNodes())


def test_events_reach_who_may_read_them_until_the_key_is_revoked(bench: Bench) -> None:
    admin, node, other = (KeyPair.generate() for _ in range(3))
    bench.authorize(admin, "admin")
    bench.authorize(other, "admin")
    bench.authorize(node, "cachenode")
    publisher = Publisher(bench.loop, "tcp://127.0.0.1:*")
    assert bench.loop.identity is not None
    told = with_key(publisher.endpoint, bench.loop.identity.pair.public)
    readers = [Subscriber(told, (), pair) for pair in (admin, other, node)]
    readers.append(Subscriber(publisher.endpoint))
    got: list[int] = [0, 0, 0, 0]

    def publish_and_read() -> None:
        publisher.publish(NodeLeft(node=NodeId("x"), role="decode", why=""))
        for index, reader in enumerate(readers):
            got[index] += sum(1 for _ in reader.events(0.001))

    def reached() -> bool:
        publish_and_read()
        return got[0] > 2 and got[1] > 2

    assert bench.turn(reached)
    bench.revoke(other)
    for _ in range(100):  # what was on its way
        bench.loop.run_once(0.001)
    got[:] = [0, 0, 0, 0]
    for reader in readers:
        while list(reader.events(0.01)):
            pass
    assert bench.turn(lambda: (publish_and_read(), got[0] > 2)[1])  # type: ignore[func-returns-value]
    assert got[1:] == [0, 0, 0]
    for reader in readers:
        reader.close()
    publisher.close()


def test_each_refusal_is_counted_and_logged_alike(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler of a daemon's log writes what is alike once a minute."""
    pair = KeyPair.generate()
    bench.authorize(pair, "cachenode")
    channel = bench.connect(pair)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            bench.ask(channel, ListNodes())
    assert bench.server.num_refused == 3
    assert len({record.getMessage() for record in caplog.records}) == 1


def test_a_secret_of_another_length_is_no_key() -> None:
    with pytest.raises(ConfigError):
        KeyPair.of(b"short")
    pair = KeyPair.generate()
    assert KeyPair.of(pair.secret) == pair


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        ("tcp://127.0.0.1:7700", True),
        ("tcp://127.3.0.1:*", True),
        ("tcp://localhost:7700", True),
        ("tcp://[::1]:7700", True),
        ("ipc:///run/x", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("tcp://10.0.0.1:7700", False),
        ("tcp://0.0.0.0:7700", False),
        ("tcp://*:7700", False),
        ("tcp://[::]:7700", False),
        ("tcp://host-a:7700", False),
        ("127.0.0.1.example.com", False),
        ("fe80::1%eth0", False),
    ],
)
def test_which_addresses_are_loopback(address: str, is_local: bool) -> None:
    assert is_loopback(address) is is_local


@pytest.mark.parametrize("seed", range(6))
def test_whatever_knocks_others_are_served(bench: Bench, seed: int) -> None:
    """Noise, halves of a handshake, and whole ones of another mechanism."""
    chance = random.Random(seed)
    pair = KeyPair.generate()
    bench.authorize(pair, "admin")
    channel = bench.connect(pair)
    port = int(bench.server.endpoint.rpartition(":")[2])
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
    with contextlib.ExitStack() as open_sockets:
        for _ in range(8):
            knocking = open_sockets.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            begin = greeting[: chance.randrange(len(greeting) + 1)]
            with contextlib.suppress(OSError):
                knocking.sendall(begin + chance.randbytes(chance.randrange(300)))
            assert bench.ask(channel, CacheStat()) == Ok()
    assert bench.ask(channel, CacheStat()) == Ok()
    assert not bench.loop.num_errors
