"""Leases only grow until they run out; touching orders use."""

import numpy as np

from daemons.store.eviction.lease import LeaseTable


def test_shorter_lease_does_not_cut_a_longer_one() -> None:
    table = LeaseTable()
    table.add_all(np.array([0]), now_s=1)
    table.touch(np.array([0]), now_s=1, lease_s=10)
    table.touch(np.array([0]), now_s=2, lease_s=1)
    assert table.is_leased(0, now_s=10.9)
    assert not table.is_leased(0, now_s=11)


def test_reused_row_starts_without_a_lease() -> None:
    table = LeaseTable()
    table.add_all(np.array([0]), now_s=1)
    table.touch(np.array([0]), now_s=1, lease_s=100)
    table.add_all(np.array([0]), now_s=2)
    assert not table.is_leased(0, now_s=2)
    assert table.used_s.values[0] == 2


def test_raised_rows_are_never_less_recent_than_before() -> None:
    table = LeaseTable()
    rows = np.array([0, 1])
    table.add_all(rows[:1], now_s=5)
    table.add_all(rows[1:], now_s=7)
    table.raise_all(rows, used_s=6)
    assert table.used_s.values[rows].tolist() == [6, 7]


def test_rows_far_apart_can_be_added() -> None:
    table = LeaseTable()
    table.add_all(np.array([5000]), now_s=3)
    assert table.used_s.values[5000] == 3


def test_time_in_which_nobody_could_renew_ends_no_lease_and_brings_none_back() -> None:
    table = LeaseTable()
    table.add_all(np.array([0, 1, 2]), now_s=1)
    table.touch(np.array([0]), now_s=1, lease_s=10)
    table.touch(np.array([1]), now_s=1, lease_s=2)
    table.extend(30.0, now_s=35)
    assert [table.is_leased(row, now_s=40.9) for row in range(3)] == [True, False, False]
    assert not table.is_leased(0, now_s=41)
