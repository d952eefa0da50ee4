"""Events over XPUB/SUB: numbered, filtered by topic, free while nobody listens."""

import threading
import time

import pytest

from daemons.core.errors import ConfigError
from daemons.core.ids import NodeId
from daemons.protocol.node import NodeJoined, NodeLeft
from daemons.rpc import Loop, Publisher, Subscriber

pytestmark = pytest.mark.timeout(30)


def test_reader_gets_its_topics_with_their_numbers() -> None:
    loop = Loop()
    publisher = Publisher(loop, "tcp://127.0.0.1:*")
    joined = NodeJoined(node=NodeId("a"), role="decode")
    left = NodeLeft(node=NodeId("a"), role="decode", why="")
    publisher.publish(joined)
    subscriber = Subscriber(publisher.endpoint, ("nodeleft",))
    got: list[tuple[int, object]] = []
    reader = threading.Thread(target=lambda: got.extend(subscriber.events(2.0)))
    reader.start()
    deadline_s = time.monotonic() + 5
    while not publisher._topics and time.monotonic() < deadline_s:
        loop.run_once(0.05)
    publisher.publish(joined)
    publisher.publish(left)
    reader.join()
    subscriber.close()
    assert got == [(3, left, 0)]
    assert loop.run_until(lambda: not publisher._topics, 20)
    publisher.publish(left)
    assert publisher.sequence == 4
    publisher.close()
    loop.close()


def test_taken_address_is_one_clear_line() -> None:
    loop = Loop()
    publisher = Publisher(loop, "tcp://127.0.0.1:*")
    with pytest.raises(ConfigError, match="events"):
        Publisher(loop, publisher.endpoint)
    publisher.close()
    loop.close()
