"""What a client has put is what it reads, also while the master has not heard of it."""

import signal
from collections.abc import Iterator

import pytest
from kit.object_pool import ObjectPool, wait_for

from daemons.core.errors import Unavailable
from mcctl import Store


@pytest.fixture
def pool() -> Iterator[ObjectPool]:
    """One node, which tells what it seals a second later."""
    pool = ObjectPool(1, started=0)
    pool.start_node(0, "report.interval_s=1")
    pool.wait_joined(1)
    yield pool
    pool.close()


def test_the_master_s_old_word_on_a_name_counts_for_nothing_after_a_put(pool: ObjectPool) -> None:
    with Store(pool.endpoint, timeout_s=3.0) as store:
        old = store.put("name", b"old")
        wait_for(lambda: store.stat("name") is not None)
        new = store.replace("name", b"new")
        stat = store.stat("name")
        assert stat is not None
        assert stat.version == new > old
        store.replace("name", b"newer")
        pool.signal("node-0", signal.SIGSTOP)  # it cannot tell of it
        with pytest.raises(Unavailable, match="has not heard of yet"):
            store.stat("name")
        pool.signal("node-0", signal.SIGCONT)
        assert store.get("name") == b"newer"
