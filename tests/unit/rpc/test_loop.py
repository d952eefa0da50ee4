"""Timers, posts and stalls, on a clock that the test moves."""

import threading
from collections.abc import Iterator

import pytest

from daemons.core.clock import ManualClock
from daemons.rpc import Loop


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def loop(clock: ManualClock) -> Iterator[Loop]:
    made = Loop(clock)
    yield made
    made.close()


def test_timers_run_in_order_when_due(loop: Loop, clock: ManualClock) -> None:
    ran: list[str] = []
    loop.call_later(2, ran.append, "second")
    loop.call_later(1, ran.append, "first")
    loop.call_later(1, ran.append, "cancelled").cancel()
    loop.run_once(0)
    assert ran == []
    clock.advance(3)
    loop.run_once(0)
    assert ran == ["first", "second"]


def test_repeating_timer_fires_once_after_a_stall(loop: Loop, clock: ManualClock) -> None:
    ran: list[int] = []
    timer = loop.every(1, lambda: ran.append(1))
    clock.advance(30)
    loop.run_once(0)
    loop.run_once(0)
    assert len(ran) == 1
    clock.advance(1)
    loop.run_once(0)
    assert len(ran) == 2
    timer.cancel()
    clock.advance(5)
    loop.run_once(0)
    assert len(ran) == 2


def test_stall_is_seen_in_the_turn_after_it_only(loop: Loop, clock: ManualClock) -> None:
    ran: list[object] = []
    loop.on_stall = ran.append
    loop.call_later(0.6, ran.append, "timer")
    loop.run_once(0)
    clock.advance(0.5)
    loop.run_once(0)
    assert loop.stall_s == 0
    clock.advance(3)
    loop.run_once(0)
    assert loop.stall_s == 3
    assert ran == [3, "timer"], "whoever is told of it hears so first"
    loop.run_once(0)
    assert loop.stall_s == 0


def test_a_stall_in_the_middle_of_a_turn_is_told_before_what_runs_next(
    loop: Loop, clock: ManualClock
) -> None:
    """Whatever was being done when the process was stopped: leases are to end neither by this turn nor by the next."""
    ran: list[object] = []
    loop.on_stall = ran.append

    def stopped() -> None:
        clock.advance(5)
        ran.append("ran")

    loop.call_soon_threadsafe(stopped)
    loop.call_later(0.1, stopped)
    loop.call_later(0.2, lambda: ran.append("last"))
    loop.run_once(0)
    assert ran == ["ran", 5, "ran", 5, "last"]
    loop.run_once(0)
    assert loop.stall_s == 0
    assert ran[5:] == []


def test_what_is_heard_after_a_stall_in_a_turn_may_have_waited_so_long(
    loop: Loop, clock: ManualClock
) -> None:
    seen: list[float] = []

    def stopped() -> None:
        seen.append(loop.stalled_s)
        clock.advance(5)
        seen.append(loop.stalled_s)

    loop.call_soon_threadsafe(stopped)
    loop.run_once(0)
    loop.call_soon_threadsafe(lambda: seen.append(loop.stalled_s))
    loop.run_once(0)
    loop.call_soon_threadsafe(lambda: seen.append(loop.stalled_s))
    loop.run_once(0)
    assert seen == [0, 5, 5, 0]


def test_a_failing_callback_ends_nothing_else(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    ran: list[int] = []
    loop.call_later(0, lambda: 1 // 0)
    loop.call_later(0, ran.append, 1)
    loop.run_once(0)
    assert ran == [1]
    assert loop.num_errors == 1
    assert "ZeroDivisionError" in caplog.text


def test_posts_from_other_threads_run_in_order() -> None:
    loop = Loop()
    ran: list[int] = []

    def post() -> None:
        for index in range(100):
            loop.call_soon_threadsafe(ran.append, index)

    thread = threading.Thread(target=post)
    thread.start()
    assert loop.run_until(lambda: len(ran) == 100, 20)
    thread.join()
    assert ran == list(range(100))
    loop.close()


def test_run_until_gives_up_in_time() -> None:
    loop = Loop()
    assert not loop.run_until(lambda: False, 0.05)
    loop.stop()
    loop.run()
    loop.close()


def test_a_closed_loop_hears_nothing(clock: ManualClock) -> None:
    closed = Loop(clock)
    closed.close()
    closed.call_soon_threadsafe(lambda: None)
    closed.stop()


def test_cancelled_timers_do_not_pile_up_until_they_are_due(loop: Loop, clock: ManualClock) -> None:
    ran: list[str] = []
    loop.call_later(1, ran.append, "first")
    for _ in range(10_000):
        loop.call_later(3600, ran.append, "never").cancel()
    loop.call_later(2, ran.append, "second")
    assert len(loop._timers) < 1000
    clock.advance(3)
    loop.run_once(0)
    assert ran == ["first", "second"]
    kept = [loop.call_later(5, ran.append, str(number)) for number in range(200)]
    for timer in kept[::2]:
        timer.cancel()
        timer.cancel()
    clock.advance(10)
    loop.run_once(0)
    assert ran[2:] == [str(number) for number in range(1, 200, 2)]
    assert loop._timers == []
