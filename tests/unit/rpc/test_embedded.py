"""A Loop turned by asyncio: replies, losses and timeouts arrive though nobody waits in it."""

import asyncio
from collections.abc import Iterator

import pytest
from kit.answering import Answering

from daemons.core.errors import McError, Unavailable
from daemons.protocol.base import Ok
from daemons.protocol.cache import CacheStat
from daemons.protocol.messages import Reply
from daemons.rpc import Channel, Embedded, Loop

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def answering() -> Iterator[Answering]:
    made = Answering()
    yield made
    made.close()


class Asking:
    """A channel in an embedded loop."""

    def __init__(self, endpoint: str) -> None:
        self.embedded = Embedded(Loop())
        self.channel = Channel(self.embedded.loop, endpoint, connect_timeout_s=20)

    def ask(self, timeout_s: float = 20.0) -> "asyncio.Future[Reply | McError]":
        done: asyncio.Future[Reply | McError] = self.embedded.host.create_future()
        self.channel.request(CacheStat(), timeout_s=timeout_s, on_reply=done.set_result)
        self.embedded.kick()
        return done

    def close(self) -> None:
        self.channel.close()
        self.embedded.close()


def test_many_requests_at_once_get_their_replies(answering: Answering) -> None:
    async def main() -> None:
        asking = Asking(answering.server.endpoint)
        for _ in range(5):
            assert await asyncio.gather(*(asking.ask() for _ in range(300))) == [Ok()] * 300
        for _ in range(100):
            assert await asking.ask() == Ok()
        asking.close()

    asyncio.run(main())


def test_a_late_reply_and_a_timeout_arrive_without_any_traffic(answering: Answering) -> None:
    async def main() -> None:
        asking = Asking(answering.server.endpoint)
        assert await asking.ask() == Ok()
        answering.handle = lambda call: answering.loop.call_later(0.2, call.reply, Ok())
        assert await asking.ask() == Ok()
        answering.handle = lambda _: None
        assert isinstance(await asking.ask(0.2), Unavailable)
        asking.close()

    asyncio.run(main())


def test_a_server_that_ends_is_noticed_and_the_next_one_is_reached(answering: Answering) -> None:
    async def main() -> None:
        asking = Asking(answering.server.endpoint)
        assert await asking.ask() == Ok()
        answering.handle = lambda _: answering.server.close()
        assert isinstance(await asking.ask(60), Unavailable)
        other = Answering()
        again = Asking(other.server.endpoint)
        assert await again.ask() == Ok()
        again.close()
        other.close()
        asking.close()

    asyncio.run(main())


def test_nothing_is_watched_after_the_end(answering: Answering) -> None:
    async def main() -> None:
        asking = Asking(answering.server.endpoint)
        assert await asking.ask() == Ok()
        assert len(asking.embedded._fds) == 3
        asking.close()
        assert not asking.embedded._fds

    asyncio.run(main())
