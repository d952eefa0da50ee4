"""Spreading: by rate and distance, fair; bad paths are paused and tried again."""

from collections import Counter

import pytest

from daemons.core.units import MIB
from daemons.transfer.path_record import Path, PathPolicy
from daemons.transfer.plan import BatchEnd, PathBook, Send
from daemons.transfer.slices import Slice, Span


def pieces(count: int, length: int = MIB) -> list[Slice]:
    return [Slice((Span(i * length, i * length, length),), length) for i in range(count)]


def sends(book: PathBook, now_s: float = 0.0) -> list[Send]:
    found = []
    while send := book.next(now_s):
        found.append(send)
    return found


def test_equal_paths_share_equally() -> None:
    book = PathBook([Path("a"), Path("b")])
    book.submit(pieces(16))
    assert Counter(send.path for send in sends(book)) == {"a": 8, "b": 8}


def test_far_path_helps_only_when_the_near_ones_are_long_busy() -> None:
    book = PathBook([Path("near"), Path("far")])
    book.submit(pieces(3), near={"near"})
    assert {send.path for send in sends(book)} == {"near"}
    book.submit(pieces(12), near={"near"})
    shares = Counter(send.path for send in sends(book))
    assert shares["near"] > 2 * shares["far"] > 0


def test_slow_path_gets_its_share_and_no_more() -> None:
    """Two links of which one turns out to have a quarter of the speed: simulated as two queues."""
    speeds = {"a": 4e9, "b": 1e9}
    book = PathBook([Path("a", 4e9, max_in_flight=4), Path("b", 4e9, max_in_flight=4)])
    book.submit(pieces(1000))
    now, free_at, done = 0.0, dict.fromkeys(speeds, 0.0), Counter[str]()
    queue: list[tuple[float, Send]] = []
    ended = None
    while not ended:
        for send in sends(book, now):
            free_at[send.path] = max(now, free_at[send.path]) + MIB / speeds[send.path]
            queue.append((free_at[send.path], send))
        queue.sort(key=lambda item: -item[0])
        now, send = queue.pop()
        done[send.path] += 1
        ended = book.completed(send.ticket, now)
    assert 3.2 < done["a"] / done["b"] < 5
    assert now < 1.1 * 1000 * MIB / sum(speeds.values())


def test_a_path_that_was_slow_once_is_tried_again() -> None:
    book = PathBook([Path("a", 1e9), Path("b", 1e9)], PathPolicy(forget_s=1.0, rate_weight=1.0))
    book.submit(pieces(2))
    first, second = sends(book)
    book.completed(first.ticket, 0.001)
    book.completed(second.ticket, 10.0)
    slow = second.path
    book.submit(pieces(4))
    assert slow not in {send.path for send in sends(book, 10.0)}
    for ticket in book.in_flight(2):  # type: ignore[arg-type]  # the second batch
        book.completed(ticket, 10.001)
    book.submit(pieces(8))
    assert slow in {send.path for send in sends(book, 20.0)}


def test_batches_are_served_in_turns() -> None:
    book = PathBook([Path("a", max_in_flight=8)])
    long = book.submit(pieces(100))
    begun = sends(book)
    short = book.submit(pieces(4))
    order = []
    for send in begun:
        book.completed(send.ticket, 0.01)
        order += [s.batch for s in sends(book, 0.01)]
    assert order.count(short) == 4
    assert order.index(short) <= 1
    assert order[:8].count(long) == 4


def test_a_full_path_holds_back_only_those_who_want_it() -> None:
    book = PathBook([Path("a", max_in_flight=1), Path("b", max_in_flight=1)])
    book.submit(pieces(5), near={"a"})
    other = book.submit(pieces(1), near={"b"})
    assert [send.path for send in sends(book)] == ["a", "b"]
    assert len(book.in_flight(other)) == 1


def test_one_batch_can_be_asked_for() -> None:
    book = PathBook([Path("a")])
    book.submit(pieces(2))
    mine = book.submit(pieces(2))
    found = [book.next(0.0, mine), book.next(0.0, mine)]
    assert [send.batch for send in found if send] == [mine, mine]
    assert book.next(0.0, mine) is None


# Failure.


def test_failed_slice_goes_over_another_path_and_the_batch_succeeds() -> None:
    book = PathBook([Path("a"), Path("b")])
    batch = book.submit(pieces(2))
    first, second = sends(book)
    assert book.failed(first.ticket, "link down", 0.0) is None
    again = book.next(0.0)
    assert again is not None
    assert (again.slice, again.path) == (first.slice, second.path)
    assert book.completed(second.ticket, 0.1) is None
    assert book.completed(again.ticket, 0.1) == BatchEnd(batch, "")


def test_slices_that_fail_together_count_once_and_the_pause_doubles_up_to_its_bound() -> None:
    policy = PathPolicy(pause_s=1.0, max_pause_s=4.0)
    book = PathBook([Path("a"), Path("b")], policy)
    book.submit(pieces(200))
    begun = sends(book)
    for send in begun:
        if send.path == "a":
            book.failed(send.ticket, "down", 0.0)
        else:
            book.completed(send.ticket, 0.0)
    now, pauses = 0.0, []
    for _ in range(5):
        view = book.views(now)[0]
        pauses.append(view.pause_s)
        assert {send.path for send in sends(book, now)} <= {"b"}
        wake = book.wake_s(now)
        assert wake is not None
        now = wake
        for ticket in book.in_flight(1):  # type: ignore[arg-type]  # the only batch
            book.completed(ticket, now)
        on_a = [send for send in sends(book, now) if send.path == "a"]
        assert [send.is_trial for send in on_a] == [True]
        book.failed(on_a[0].ticket, "down", now)
    assert pauses == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_a_trial_that_arrives_brings_the_path_back() -> None:
    book = PathBook([Path("a"), Path("b")])
    book.submit(pieces(40))
    first, second = book.next(0.0), book.next(0.0)
    assert first is not None
    assert second is not None
    book.failed(first.ticket, "down", 0.0)
    again, trial = book.next(1.0), book.next(1.0)
    assert again is not None
    assert trial is not None
    assert (again.path, again.is_trial) == ("b", False), "a slice that failed is risked no more"
    assert (trial.path, trial.is_trial) == ("a", True)
    book.completed(trial.ticket, 1.1)
    assert {view.state for view in book.views(1.1)} == {"up"}
    assert {send.path for send in sends(book, 1.1)} == {"a", "b"}


def test_dead_peer_fails_the_batch_after_one_try_of_each_path() -> None:
    book = PathBook([Path("a"), Path("b"), Path("c")])
    batch = book.submit(pieces(3))
    tried, end = [], None
    queue = sends(book)
    while queue:
        send = queue.pop(0)
        tried.append(send.path)
        end = book.failed(send.ticket, "gone", 0.0) or end
        queue += sends(book)
    assert end == BatchEnd(batch, "gone")
    assert len(tried) <= 9


def test_with_every_path_paused_one_slice_at_a_time_still_tries() -> None:
    book = PathBook([Path("a")], PathPolicy(pause_s=10.0))
    book.submit(pieces(1))
    first = book.next(0.0)
    assert first is not None
    assert book.failed(first.ticket, "gone", 0.0) is not None
    batch = book.submit(pieces(5))
    trial = book.next(0.1)
    assert trial is not None
    assert trial.is_trial
    assert book.next(0.1) is None
    assert book.completed(trial.ticket, 0.2) is None
    rest = sends(book, 0.2)
    assert len(rest) == 4
    ends = [book.completed(send.ticket, 0.3) for send in rest]
    assert ends[-1] == BatchEnd(batch, "")


def test_a_refused_slice_ends_its_batch_and_blames_no_path() -> None:
    book = PathBook([Path("a"), Path("b")])
    batch = book.submit(pieces(4))
    first, *rest = sends(book)
    assert book.failed(first.ticket, "outside the region", 0.0, may_retry=False) is None
    assert book.next(0.0) is None
    ends = [book.completed(send.ticket, 0.1) for send in rest]
    assert ends == [None, None, BatchEnd(batch, "outside the region")]
    assert {view.state for view in book.views(0.1)} == {"up"}


def test_a_cancelled_batch_ends_when_nothing_of_it_is_in_flight() -> None:
    book = PathBook([Path("a", max_in_flight=2)])
    batch = book.submit(pieces(9))
    flying = sends(book)
    assert book.cancel(batch, "cancelled") is None
    assert book.next(0.0) is None
    assert set(book.in_flight(batch)) == {send.ticket for send in flying}
    assert book.completed(flying[0].ticket, 0.1) is None
    assert book.failed(flying[1].ticket, "closed", 0.1) == BatchEnd(batch, "cancelled")
    assert book.cancel(batch, "again") is None


def test_an_unknown_ticket_is_a_bug_of_the_caller() -> None:
    book = PathBook([Path("a")])
    book.submit(pieces(1))
    send = book.next(0.0)
    assert send is not None
    book.completed(send.ticket, 0.0)
    with pytest.raises(KeyError):
        book.completed(send.ticket, 0.0)


def test_caller_without_a_way_over_the_best_path_uses_the_others() -> None:
    book = PathBook([Path("fast", 10e9), Path("slow", 1e9), Path("none", 100e9)])
    batch = book.submit(pieces(8))
    send = book.next(0.0, batch, {"fast": True, "slow": True})
    assert send is not None
    assert send.path == "fast"
    assert book.next(0.0, batch, {"fast": False, "slow": True}) is None, "worth waiting for"
    send = book.next(0.0, batch, {"slow": True})
    assert send is not None
    assert send.path == "slow"
    assert book.next(0.0, batch, {}) is None
    book.check_invariants()


def test_path_that_cannot_be_connected_is_paused_and_longer_each_time() -> None:
    book = PathBook([Path("a"), Path("b")], PathPolicy(pause_s=1.0))
    book.blame("a", 0.0)
    book.blame("a", 0.5)
    assert [view.pause_s for view in book.views(0.5)] == [1.0, 0.0]
    book.blame("a", 1.5)
    assert [view.pause_s for view in book.views(1.5)] == [2.0, 0.0]


def test_short_slices_say_nothing_of_the_rate() -> None:
    book = PathBook([Path("a", 10e9), Path("b", 10e9)])
    now_s = 0.0
    batch = book.submit(pieces(4000, 1024))
    while send := book.next(now_s, batch, {"a": True}):
        now_s += 1e-4  # 10 MB/s
        book.completed(send.ticket, now_s)
    assert [view.bytes_per_s for view in book.views(now_s)] == [10e9, 10e9]


def test_path_not_measured_is_taken_to_be_as_good_as_the_best_measured_one() -> None:
    book = PathBook([Path("a", 10e9), Path("b", 20e9)])
    batch = book.submit(pieces(4))
    send = book.next(0.0, batch, {"a": True})
    assert send is not None
    book.completed(send.ticket, MIB / 1e9)
    rates = {view.name: view.bytes_per_s for view in book.views(MIB / 1e9)}
    assert rates["a"] == pytest.approx(1e9), "a tenth of its link's speed"
    assert rates["b"] == pytest.approx(2e9)
