"""A node with room in slots of other sizes only: the master says who goes for a put, by use, and nobody leased."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kit.daemon import wait_for
from kit.object_pool import ObjectPool

from daemons.core.errors import Exhausted
from mcctl import Store

BIG, SMALL = 900 * 1024, 9_000
NUM_BIG = 12
"""Four in each of three slabs of 4 MiB; the fourth holds the small one."""
WAIT_S = 30.0


@contextmanager
def full_pool(lease_s: float) -> Iterator[tuple[ObjectPool, Store, list[str]]]:
    pool = ObjectPool(1, segment="16MiB", master=(f"pool.lease_s={lease_s}",))
    names = [f"big{number:02}" for number in range(NUM_BIG)]
    try:
        with Store(pool.endpoint) as store:
            store.put("small", bytes(SMALL))
            for name in names:
                store.put(name, bytes(BIG))
            yield pool, store, names
    finally:
        pool.close()


def read(pool: ObjectPool, *names: str) -> None:
    """Anew, so that the master hears of it."""
    with Store(pool.endpoint) as store:
        for name in names:
            assert store.get(name) is not None


def gone(pool: ObjectPool, *names: str) -> list[str]:
    """As one sees it who put none of them, once the master has heard of it."""
    with Store(pool.endpoint) as store:
        return [name for name in names if not store.exists(name)]


def test_what_was_read_last_stays() -> None:
    with full_pool(lease_s=1.0) as (pool, store, names):
        time.sleep(1.0)
        read(pool, "small", names[0], names[2])
        store.put("one more", bytes(BIG), timeout_s=WAIT_S)
        wait_for(lambda: gone(pool, "small", *names, "one more") == [names[1]])


def test_a_slab_of_another_size_that_is_colder_goes_first() -> None:
    with full_pool(lease_s=3.0) as (pool, store, names):
        time.sleep(0.5)
        read(pool, *names)
        more = ["more0", "more1"]  # below the watermark
        for name in more:
            store.put(name, bytes(BIG), timeout_s=WAIT_S)
        wait_for(lambda: gone(pool, "small", *names, *more) == ["small"])


def test_where_all_is_leased_a_put_says_so_and_nothing_goes() -> None:
    with full_pool(lease_s=600.0) as (pool, store, names):
        read(pool, "small", *names)
        with pytest.raises(Exhausted, match="leased to readers"):
            store.put("one more", bytes(BIG), timeout_s=3.0)
        assert gone(pool, "small", *names) == []
