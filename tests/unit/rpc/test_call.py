"""Channel.call: an answer without timers or callbacks where it comes at once, and the usual way where it does not."""

from collections.abc import Iterator

import pytest
from kit.answering import Answering

from daemons.core.errors import NotFound, Unavailable
from daemons.core.ids import BlockHash
from daemons.protocol.base import Ok
from daemons.protocol.block import FreeBlocks
from daemons.protocol.cache import CacheStat
from daemons.protocol.messages import Notice
from daemons.rpc import Call, Channel, Loop
from daemons.rpc.connection import AT_ONCE_S

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def answering() -> Iterator[Answering]:
    made = Answering()
    yield made
    made.close()


@pytest.fixture
def notices() -> list[Notice]:
    return []


@pytest.fixture
def channel(answering: Answering, notices: list[Notice]) -> Iterator[Channel]:
    loop = Loop()
    made = Channel(loop, answering.server.endpoint, notices.append, connect_timeout_s=20)
    assert made.call(CacheStat(), timeout_s=20) == Ok()
    yield made
    made.close()
    loop.close()


def test_answers_come_to_their_calls_and_leave_no_timer(channel: Channel) -> None:
    before = len(channel.loop._timers)
    for _ in range(100):
        assert channel.call(CacheStat(), timeout_s=20) == Ok()
    assert len(channel.loop._timers) <= before + 4
    assert channel.num_pending == 0


def test_an_error_is_returned_as_its_family(answering: Answering, channel: Channel) -> None:
    def refuse(_: Call) -> None:
        raise NotFound("no such thing")

    answering.handle = refuse
    assert isinstance(channel.call(CacheStat(), timeout_s=20), NotFound)


def test_an_answer_that_is_late_still_arrives(answering: Answering, channel: Channel) -> None:
    answering.handle = lambda call: answering.loop.call_later(5 * AT_ONCE_S, call.reply, Ok())
    assert channel.call(CacheStat(), timeout_s=20) == Ok()


def test_notices_in_between_are_heard(
    answering: Answering, channel: Channel, notices: list[Notice]
) -> None:
    news = FreeBlocks(hashes=[BlockHash(bytes(16))])

    def tell(call: Call) -> None:
        answering.server.notify(call.peer, news)
        call.reply(Ok())

    answering.handle = tell
    assert channel.call(CacheStat(), timeout_s=20) == Ok()
    assert notices == [news]


def test_a_call_without_an_answer_ends_with_its_time(
    answering: Answering, channel: Channel
) -> None:
    answering.handle = lambda _: None
    late = channel.call(CacheStat(), timeout_s=0.1)
    assert isinstance(late, Unavailable)
    answering.handle = lambda call: call.reply(Ok())
    assert channel.call(CacheStat(), timeout_s=20) == Ok()


def test_a_server_that_ends_in_the_middle_is_told_at_once(
    answering: Answering, channel: Channel
) -> None:
    answering.handle = lambda _: answering.server.close()
    gone = channel.call(CacheStat(), timeout_s=60)
    assert isinstance(gone, Unavailable)
