"""Versions of objects: later masters' are higher, reservations hold a name, dead versions stay dead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash, Incarnation
from daemons.store.directory.names import (
    COUNTER_BITS,
    MAX_INCARNATION,
    MAX_LATE,
    DeadNames,
    NameTable,
    may_be_given,
)
from daemons.store.directory.tombstones import TTL_S

KEY = BlockHash(bytes(16))


def key(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "big"))


def test_a_later_master_gives_higher_versions() -> None:
    first, second = NameTable(Incarnation(3)), NameTable(Incarnation(4))
    for _ in range(1000):
        last = first.next_version()
    assert second.next_version() > last


def test_an_incarnation_without_room_for_versions_is_refused() -> None:
    with pytest.raises(Exhausted):
        NameTable(Incarnation(1 << (64 - COUNTER_BITS))).next_version()
    assert NameTable(Incarnation((1 << (64 - COUNTER_BITS)) - 1)).next_version() < 1 << 64


def test_versions_go_on_above_one_that_turned_up_but_not_above_one_that_was_made_up() -> None:
    names, own = NameTable(Incarnation(3)), 3 << COUNTER_BITS
    names.skip_to(own + 77)
    names.skip_to(own + 5)
    assert names.next_version() == own + 78
    for made_up in (own + (1 << COUNTER_BITS) - 1, (9 << COUNTER_BITS) + 1):
        names.skip_to(made_up)
    assert names.next_version() == own + 79


def test_a_reservation_ends_with_its_time_its_seal_or_a_higher_one() -> None:
    names = NameTable(Incarnation(1))
    version = names.reserve(KEY, now_s=0.0, hold_s=10.0)
    assert names.is_held(KEY, version, now_s=9.0)
    assert not names.is_reserved(KEY, now_s=11.0)
    assert names.renew(KEY, version, now_s=11.0, hold_s=10.0)
    overtaking = names.reserve(KEY, now_s=12.0, hold_s=10.0)
    assert not names.renew(KEY, version, now_s=13.0, hold_s=10.0)
    names.release(KEY, version)
    assert names.is_held(KEY, overtaking, now_s=13.0), "a lower version's end is not its end"
    names.release(KEY, overtaking)
    assert not names.is_reserved(KEY, now_s=13.0)


def test_a_put_that_was_given_up_is_known_by_its_version_and_ends_no_other() -> None:
    names = NameTable(Incarnation(1))
    first = names.reserve(KEY, now_s=0.0, hold_s=10.0)
    names.give_up(KEY, first, now_s=2.0)
    second = names.reserve(KEY, now_s=3.0, hold_s=10.0)
    names.give_up(KEY, first, now_s=3.0)
    assert names.is_given_up(KEY, first)
    assert not names.is_given_up(KEY, second)
    assert names.is_held(KEY, second, now_s=3.0)
    names.give_up(KEY, second, now_s=4.0)
    assert not names.is_reserved(KEY, now_s=4.0)
    assert not names.renew(KEY, second, now_s=4.0, hold_s=10.0)
    names.expire(TTL_S + 3.0)
    assert [names.is_given_up(KEY, each) for each in (first, second)] == [False, True]


def test_what_may_have_taken_the_place_of_an_older_version_is_not_refused() -> None:
    names = NameTable(Incarnation(2))
    version = names.reserve(KEY, now_s=0.0, hold_s=10.0, replaces=True)
    assert names.renew(KEY, version, now_s=1.0, hold_s=10.0)
    names.give_up(KEY, version, now_s=2.0)
    of_an_earlier_master = 7
    assert names.renew(key(2), of_an_earlier_master, now_s=1.0, hold_s=10.0)
    names.give_up(key(2), of_an_earlier_master, now_s=2.0)
    assert not names.is_given_up(KEY, version)
    assert not names.is_given_up(key(2), of_an_earlier_master)
    assert names.may_be_sealed(KEY)
    assert names.may_be_sealed(key(2))


def test_what_may_still_be_sealed_is_known_until_it_is_or_a_higher_version() -> None:
    names = NameTable(Incarnation(1))
    assert not names.may_be_sealed(KEY)
    first = names.reserve(KEY, now_s=0.0, hold_s=10.0)
    assert names.may_be_sealed(KEY)
    names.expire(11.0)
    assert names.may_be_sealed(KEY), "its time is over, and its put may go on"
    assert not names.is_reserved(KEY, now_s=11.0)
    second = names.reserve(KEY, now_s=12.0, hold_s=10.0)
    assert names.release(KEY, second), "the first one may still come"
    assert not names.may_be_sealed(KEY)
    assert not names.release(KEY, second)
    assert first < second


def test_a_reservation_outlives_a_time_in_which_it_could_not_be_renewed() -> None:
    names = NameTable(Incarnation(1))
    version = names.reserve(KEY, now_s=0.0, hold_s=10.0)
    over = names.reserve(key(2), now_s=0.0, hold_s=1.0)
    names.extend(30.0, now_s=35.0)
    assert names.is_held(KEY, version, now_s=39.0)
    assert not names.is_held(KEY, version, now_s=40.0)
    assert not names.is_held(key(2), over, now_s=35.0)


def test_a_put_that_nothing_was_before_leaves_nothing_behind() -> None:
    names = NameTable(Incarnation(1))
    version = names.reserve(KEY, now_s=0.0, hold_s=10.0)
    assert not names.release(KEY, version)
    assert not names.may_be_sealed(KEY)


def test_of_many_late_puts_the_oldest_are_forgotten() -> None:
    names = NameTable(Incarnation(1))
    first = names.next_version() + 1
    for number in range(MAX_LATE + 2):
        version = names.reserve(key(number), now_s=0.0, hold_s=10.0)
        names.give_up(key(number), version, now_s=0.0)
    assert [names.is_given_up(key(n), first + n) for n in (0, 1, 2)] == [False, False, True]
    assert [names.may_be_sealed(key(n)) for n in (0, 1, 2)] == [False, False, True]


def test_numbers_that_no_master_gives_out_are_known() -> None:
    most = (MAX_INCARNATION << COUNTER_BITS) + 5
    assert all(map(may_be_given, (1, (3 << COUNTER_BITS) + 9, most)))
    assert not may_be_given(most + (1 << COUNTER_BITS))
    assert not may_be_given((3 << COUNTER_BITS) + (1 << COUNTER_BITS - 1))


def test_a_deleted_version_is_not_renewed() -> None:
    names = NameTable(Incarnation(1))
    version = names.reserve(KEY, now_s=0.0, hold_s=10.0)
    names.dead.add(KEY, names.next_version(), 1.0)
    names.release(KEY, names.next_version())
    assert not names.renew(KEY, version, now_s=2.0, hold_s=10.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50)), max_size=60))
def test_the_highest_dead_version_counts_in_whatever_order_they_come(
    told: list[tuple[int, int]],
) -> None:
    dead, expected = DeadNames(), dict[int, int]()
    for number, version in told:
        assert dead.add(key(number), version, 0.0) == (version > expected.get(number, 0))
        expected[number] = max(version, expected.get(number, 0))
    assert {k: v for k, v, _ in dead} == {key(n): v for n, v in expected.items()}


def test_the_oldest_gives_way_and_time_ends_all() -> None:
    dead = DeadNames(max_names=3)
    for number in range(5):
        dead.add(key(number), 1, float(number))
    assert [k for k, _, _ in dead] == [key(2), key(3), key(4)]
    dead.expire(TTL_S + 3.5)
    assert [k for k, _, _ in dead] == [key(4)]
