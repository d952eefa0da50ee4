"""Channels are shared, bounded, and closed when nobody uses them. Nothing is connected here."""

from collections.abc import Iterator

import pytest

from daemons.client.channel_pool import ChannelPool
from daemons.core.clock import ManualClock
from daemons.core.errors import Exhausted, McError, Unavailable
from daemons.protocol.base import Ping
from daemons.protocol.messages import Reply
from daemons.rpc import Loop

CLOCK = ManualClock()


@pytest.fixture
def loop() -> Iterator[Loop]:
    running = Loop(CLOCK)
    yield running
    running.close()


def test_one_channel_an_endpoint_and_idle_ones_go(loop: Loop) -> None:
    pool = ChannelPool(loop, idle_s=10)
    first = pool.get("inproc://a")
    assert pool.get("inproc://a") is first
    CLOCK.advance(6)
    pool.get("inproc://b")
    CLOCK.advance(6)
    pool.close_idle()
    assert first.is_closed
    assert len(pool) == 1
    pool.close()


def test_full_pool_gives_up_the_one_unused_longest(loop: Loop) -> None:
    pool = ChannelPool(loop, max_channels=2)
    first = pool.get("inproc://a")
    CLOCK.advance(1)
    second = pool.get("inproc://b")
    pool.get("inproc://c")
    assert first.is_closed
    assert not second.is_closed
    pool.close()


def test_full_pool_of_busy_channels_is_exhausted(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ChannelPool(loop, max_channels=1)
    monkeypatch.setattr(type(pool.get("inproc://a")), "num_pending", 1)
    with pytest.raises(Exhausted):
        pool.get("inproc://b")
    pool.close()


def test_what_fails_by_the_close_gets_no_new_channel(loop: Loop) -> None:
    pool = ChannelPool(loop)
    refused: list[str] = []

    def ask_elsewhere(_: Reply | McError) -> None:
        with pytest.raises(Unavailable) as caught:
            pool.get("inproc://b")
        refused.append(caught.value.message)

    pool.get("inproc://a").request(Ping(), timeout_s=5, on_reply=ask_elsewhere)
    pool.close()
    assert refused == ["this process is shutting down"]
    assert len(pool) == 0
