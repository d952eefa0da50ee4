"""What a server sends stays in order, also where answers are held to go together, and none is held for long."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import zmq

from daemons.core.clock import ManualClock
from daemons.core.ids import Incarnation, NodeId
from daemons.protocol.base import Ok
from daemons.protocol.block import FreeBlocks
from daemons.protocol.cache import CacheStat
from daemons.protocol.messages import encode
from daemons.protocol.node import HelloReply
from daemons.rpc import Call, Loop, Server
from daemons.rpc.framing import Header, Kind, unpack_header
from daemons.rpc.outbox import MAX_HELD, MAX_HELD_S, Outbox

pytestmark = pytest.mark.timeout(30)


@dataclass
class Pair:
    """`router` has heard of `dealer` as `peer`."""

    router: "zmq.Socket[bytes]"
    dealer: "zmq.Socket[bytes]"
    peer: bytes

    def heard(self, count: int) -> list[bytes]:
        found = []
        for _ in range(count):
            assert self.dealer.poll(20_000)
            found.append(self.dealer.recv_multipart()[1])
        return found


@pytest.fixture
def pair() -> Iterator[Pair]:
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    dealer.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    dealer.send(b"")
    assert router.poll(20_000)
    yield Pair(router, dealer, router.recv_multipart()[0])
    context.destroy(linger=0)


def test_what_is_held_goes_before_what_is_sent_after_it(pair: Pair) -> None:
    outbox = Outbox(pair.router, ManualClock())
    outbox.hold((pair.peer, b"", b"1"))
    outbox.hold((pair.peer, b"", b"2"))
    assert not pair.dealer.poll(0)
    assert outbox.send((pair.peer, b"", b"3"))
    assert pair.heard(3) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(("count", "later_s"), [(MAX_HELD, 0.0), (2, 2 * MAX_HELD_S)])
def test_nothing_is_held_for_long(pair: Pair, count: int, later_s: float) -> None:
    clock = ManualClock()
    outbox = Outbox(pair.router, clock)
    for number in range(count):
        outbox.hold((pair.peer, b"", b"%d" % number))
        clock.advance(later_s)
    assert pair.heard(count) == [b"%d" % number for number in range(count)]


def test_a_peer_that_is_gone_keeps_no_other_from_its_answer(pair: Pair) -> None:
    outbox = Outbox(pair.router, ManualClock())
    outbox.hold((b"gone", b"", b"1"))
    outbox.hold((pair.peer, b"", b"2"))
    outbox.flush()
    assert pair.heard(1) == [b"2"]
    assert outbox.num_undeliverable == 1
    assert not outbox.send((b"gone", b"", b"3"))


def test_requests_that_wait_together_are_all_answered_and_notices_keep_their_place() -> None:
    loop, calls = Loop(), []

    def handle(call: Call) -> None:
        calls.append(call)
        if len(calls) == 2:
            server.notify(call.peer, FreeBlocks(hashes=[]))
        call.reply(Ok())

    def hello() -> HelloReply:
        return HelloReply(node=NodeId("s"), role="master", incarnation=Incarnation(1))

    server = Server(loop, "tcp://127.0.0.1:*", hello, handle)
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(server.endpoint)
    for number in range(1, MAX_HELD + 5):
        dealer.send_multipart([Header(Kind.REQUEST, number, 60_000).pack(), encode(CacheStat())])
    heard: list[int] = []

    def has_all() -> bool:
        while dealer.poll(0):
            heard.append(unpack_header(dealer.recv_multipart()[0]).request_id)
        return len(heard) == MAX_HELD + 5

    try:
        assert loop.run_until(has_all, 20)
        assert heard == [1, 0, *range(2, MAX_HELD + 5)]
    finally:
        context.destroy(linger=0)
        server.close()
        loop.close()
