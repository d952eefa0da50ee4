"""Objects when nodes and masters die and come back: what was acknowledged is served, what was deleted stays deleted."""

import contextlib
import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from kit.daemon import wait_for
from kit.object_pool import ObjectPool

from daemons.client.cluster import ClusterClient
from daemons.client.objects.lookup import ObjectLookup
from daemons.client.objects.reader import ObjectReader
from daemons.core.errors import Exhausted, McError, Unavailable
from daemons.protocol.block import BlockFilter
from daemons.transfer import TransferEngine
from mcctl import Store


@pytest.fixture(scope="module")
def pool() -> Iterator[ObjectPool]:
    """Two nodes, which every test leaves up; a third one for the last."""
    pool = ObjectPool(3, started=2)
    yield pool
    pool.close()


def counting(call: Callable[..., object], calls: "Counter[str]") -> Callable[..., object]:
    @functools.wraps(call)
    def counted(*words: object, **named: object) -> object:
        calls[call.__name__] += 1
        return call(*words, **named)

    return counted


@contextlib.contextmanager
def stopped(pool: ObjectPool, name: str) -> Iterator[None]:
    pool.signal(name, signal.SIGSTOP)
    try:
        yield
    finally:
        pool.signal(name, signal.SIGCONT)


def holder(store: Store, name: str) -> int:
    stat = store.stat(name)
    assert stat is not None
    return int(stat.nodes[0].removeprefix("node-"))


def test_what_was_deleted_or_replaced_stays_so_when_its_node_returns(pool: ObjectPool) -> None:
    names = ["deleted", "replaced", "kept"]
    with Store(pool.endpoint, namespace="n") as store:
        store.put_many([(name, b"old" * 1000) for name in names])
        wait_for(lambda: store.exists_many(names) == ["present"] * 3)
        away = holder(store, "kept")
        pool.kill(f"node-{away}")
        wait_for(lambda: set(store.exists_many(names)) == {"unreachable"})
        with pytest.raises(Unavailable):
            store.get("kept")
        store.replace("replaced", b"new")
        with pytest.raises(Unavailable, match="only 1 nodes have logged it"):
            store.delete("deleted")
        assert store.exists_many(["deleted", "replaced"]) == ["absent", "present"]
        pool.kill("master")
        pool.start_master()
        pool.wait_joined(1)
        pool.start_node(away)
        pool.wait_joined(2)
        wait_for(lambda: store.exists("kept") == "present")
    with Store(pool.endpoint, namespace="n") as store:
        assert store.get_many(names) == [None, b"new", b"old" * 1000]
        assert {each.name for each in store.list()} == {b"replaced", b"kept"}


def test_what_frees_an_older_version_comes_late_and_does_not_free_the_newer_one(
    pool: ObjectPool,
) -> None:
    names = [f"v{number}" for number in range(4)]
    with Store(pool.endpoint, namespace="late") as store:
        store.put_many([(name, b"old") for name in names])
        wait_for(lambda: store.exists_many(names) == ["present"] * 4)
        old = BlockFilter(hashes=tuple(h for name in names for h in store.blocks_of(name)))
        replacing = [
            threading.Thread(target=store.replace, args=(name, b"new" + name.encode()))
            for name in names
        ]
        with stopped(pool, "node-0"), stopped(pool, "node-1"):
            with ClusterClient(pool.endpoint, 5.0) as client:
                assert client.clear_blocks(old, 1.2).num_cleared == 0, "they hear of it later"
            for each in replacing:
                each.start()
            replacing[0].join(0.3)  # so that they see both at once
        for each in replacing:
            each.join(20)
    with Store(pool.endpoint, namespace="late") as reader:
        wait_for(lambda: reader.exists_many(names) == ["present"] * 4)
        assert reader.get_many(names) == [b"new" + name.encode() for name in names]


def test_a_master_killed_under_puts_loses_nothing_that_was_acknowledged(pool: ObjectPool) -> None:
    acknowledged: dict[str, bytes] = {}
    is_over = threading.Event()

    def put() -> None:
        with Store(pool.endpoint, namespace="load", timeout_s=8.0) as store:
            for number in itertools.count():
                if is_over.is_set():
                    return
                name, value = f"o{number}", os.urandom(2000 + 50_000 * (number % 9 == 0))
                with contextlib.suppress(McError):
                    store.put(name, value)
                    acknowledged[name] = value

    thread = threading.Thread(target=put)
    thread.start()
    for num_put in (20, 40):
        wait_for(lambda: len(acknowledged) > num_put, 60.0, what=f"{num_put} puts")  # noqa: B023  # at once
        pool.kill("master")
        with Store(pool.endpoint, namespace="load", timeout_s=0.3) as late, pytest.raises(McError):
            late.get("o0")
        pool.start_master()
    wait_for(lambda: len(acknowledged) > 60, 60.0, what="puts at the last master")
    is_over.set()
    thread.join(20)
    with Store(pool.endpoint, namespace="load", timeout_s=10.0) as store:
        names = list(acknowledged)
        time.sleep(0.05)
        assert store.get_many(names) == list(acknowledged.values())
        assert store.get("never") is None


def test_a_node_killed_under_puts_loses_nothing_that_was_acknowledged(pool: ObjectPool) -> None:
    acknowledged: dict[str, bytes] = {}
    with Store(pool.endpoint, namespace="nodes", timeout_s=10.0) as store:
        for number in range(60):
            if number == 20:
                pool.kill("node-0")
            if number == 40:
                pool.start_node(0)
            value = os.urandom(100_000 if number % 2 else 2_000)
            store.put(f"o{number}", value)
            acknowledged[f"o{number}"] = value
        # The node may still be starting, while the master takes its last life for alive.
        wait_for(lambda: store.get_many(list(acknowledged)) == list(acknowledged.values()))


def test_a_stopped_master_is_not_waited_for_beyond_the_timeout_and_known_places_are_read(
    pool: ObjectPool,
) -> None:
    with Store(pool.endpoint, namespace="n", timeout_s=0.6) as store:
        store.put("a", b"1")
        pool.signal("master", signal.SIGSTOP)
        started_s = time.monotonic()
        assert store.get("a") == b"1"
        with pytest.raises(Unavailable):
            store.get("b")
        assert time.monotonic() - started_s < 15
        pool.signal("master", signal.SIGCONT)
        wait_for(lambda: store.exists("a") == "present")


def test_a_batch_of_nodes_that_do_not_answer_ends_with_its_time(
    pool: ObjectPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, tries = [f"b{number}" for number in range(2000)], Counter[str]()
    for owner, verb in ((ObjectReader, "read_object"), (ObjectLookup, "find_now")):
        monkeypatch.setattr(owner, verb, counting(getattr(owner, verb), tries))
    with (
        TransferEngine(transports=("tcp",)) as engine,
        Store(pool.endpoint, namespace="batch", engine=engine) as store,
    ):
        assert all(isinstance(each, int) for each in store.put_many([(n, b"v") for n in names]))
        assert store.get_many(names) == [b"v"] * len(names)
        tries.clear()
        for node in ("node-0", "node-1"):
            pool.signal(node, signal.SIGSTOP)
        results = store.get_many(names, timeout_s=1.0)
        for node in ("node-0", "node-1"):
            pool.signal(node, signal.SIGCONT)
        assert {type(each) for each in results} == {Unavailable}
        assert tries.total() < 100, "not one after the other, each for a moment"
        wait_for(lambda: store.get_many(names) == [b"v"] * len(names), 60.0)


def test_a_master_without_its_state_directory_gives_out_no_version_twice(pool: ObjectPool) -> None:
    with Store(pool.endpoint, namespace="lost") as store:
        for number in range(50):
            last = store.replace("a", b"%d" % number)
    for name in ("master", "node-0", "node-1"):
        pool.kill(name)
    shutil.rmtree(pool.directory / "state")
    pool.start_master()
    for number in (0, 1):
        pool.start_node(number)
    wait_for(lambda: pool.daemons["master"].process.poll() is not None, 60.0, "it steps down")
    pool.kill("master")
    assert "lived, this one is 1: ending" in pool.daemons["master"].said()
    pool.start_master()
    pool.wait_joined(2)
    with Store(pool.endpoint, namespace="lost", timeout_s=20.0) as store:
        wait_for(lambda: store.get("a") == b"49", 60.0)
        assert store.replace("a", b"last") > last


READER = """
import sys
from daemons.core.errors import McError
from mcctl import Store

with Store(sys.argv[1], namespace="cut", timeout_s=5.0) as store:
    print(len(store.get("a")), flush=True)
    sys.stdin.readline()
    for _ in range(3):
        try:
            print(store.get("a"), flush=True)
        except McError as error:
            print(type(error).__name__, flush=True)
"""


def test_a_segment_file_that_is_cut_short_ends_its_node_but_no_reader(pool: ObjectPool) -> None:
    with Store(pool.endpoint, namespace="cut") as store:
        store.put("a", b"x" * 100_000)
        wait_for(lambda: store.exists("a") == "present")
        number = holder(store, "a")
    command = [sys.executable, "-c", READER, pool.endpoint]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "100000\n"
        [segment] = (pool.directory / f"shm-{number}").rglob("*.segment")
        os.truncate(segment, 0)
        said, _ = reader.communicate("go on\n", timeout=60)
        assert reader.returncode == 0, said
        assert set(said.split()) <= {"None", "Unavailable", "TransferError"}
    node = pool.daemons[f"node-{number}"]
    wait_for(lambda: node.process.poll() is not None, 60.0, "the node ends")
    pool.kill(f"node-{number}")
    assert "cut short by somebody" in node.said()
    pool.start_node(number)
    pool.wait_joined(2)


def test_a_put_into_a_full_pool_waits_its_time_and_then_explains(pool: ObjectPool) -> None:
    with Store(pool.endpoint, namespace="full", timeout_s=20.0) as store:
        store.put("kept", bytes(60 << 20))
        store.pin("kept", is_hard=True)
        started_s = time.monotonic()
        with pytest.raises(Exhausted, match=r"no room for 'x' of 100.0 MiB within 2\.?\d* s.*MiB"):
            store.put("x", bytes(100 << 20), timeout_s=2.0)
        assert 0.5 < time.monotonic() - started_s < 20
        assert store.exists("x") == "absent"
        assert store.get("kept") == bytes(60 << 20)
        store.delete("kept")


def test_a_value_larger_than_the_pool_is_refused_and_evicts_nothing(pool: ObjectPool) -> None:
    with Store(pool.endpoint, namespace="large", timeout_s=20.0) as store:
        store.put("kept", bytes(1 << 20))
        with pytest.raises(
            Exhausted, match=r"'x' of 200\.0 MiB is larger than the whole pool, 12\d\.\d MiB"
        ):
            store.put("x", bytes(200 << 20))
        assert store.exists("x") == "absent"
        assert store.get("kept") == bytes(1 << 20)


def test_a_node_that_joins_later_tells_later_masters_what_is_dead(pool: ObjectPool) -> None:
    with Store(pool.endpoint, namespace="joined") as store:
        store.put_many([("deleted", b"old"), ("kept", b"old")])
        wait_for(lambda: store.exists("kept") == "present")
        away = holder(store, "kept")
        pool.kill(f"node-{away}")
        wait_for(lambda: store.exists("kept") == "unreachable")
        with pytest.raises(Unavailable):
            store.delete("deleted")
        pool.start_node(2)
        pool.wait_joined(2)
        time.sleep(0.2)
        pool.kill(f"node-{1 - away}")
        pool.kill("master")
        pool.start_master()
        pool.start_node(away)
        pool.wait_joined(2)
        wait_for(lambda: store.exists("kept") == "present")
        assert store.exists("deleted") != "present"
        assert [each.name for each in store.list()] == [b"kept"]
