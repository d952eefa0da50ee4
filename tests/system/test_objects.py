"""Named objects with real daemons: nothing half, nothing lost, nothing that comes back from a node that was away."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from kit.daemon import wait_for
from kit.object_pool import ObjectPool

from daemons.client.objects.format import PIECE_BYTES, Footer, object_meta, pack_footer
from daemons.core.errors import Conflict, Exhausted, McError, Unavailable
from daemons.core.ids import new_put_id
from daemons.protocol.block import MAX_INLINE_BYTES, Put, PutBlock
from daemons.protocol.objects import NameToReserve, ReleaseNames, ReserveNames, ReserveNamesReply
from daemons.rpc import SyncClient
from daemons.transfer import TransferEngine
from mcctl import Store
from mcctl.cache.archive import export_objects, import_objects
from mcctl.main import main


@pytest.fixture(scope="module")
def pool() -> Iterator[ObjectPool]:
    pool = ObjectPool(2, master=("pool.orphan_s=1.5",))
    yield pool
    pool.close()


@pytest.fixture
def store(pool: ObjectPool, request: pytest.FixtureRequest) -> Iterator[Store]:
    with Store(pool.endpoint, namespace=request.node.name) as store:
        yield store


def other(pool: ObjectPool, store: Store) -> Store:
    """Another client, which knows nothing yet."""
    return Store(pool.endpoint, namespace=store.namespace)


def test_values_of_all_sizes_come_back_whole_and_in_parts(pool: ObjectPool, store: Store) -> None:
    piece, sizes = 1 << 20, [0, 1, 4096, 65_432, 65_433]
    sizes += [piece - 105, piece - 104, piece - 50, piece, 3 * piece + 7, 9 * piece + 1]
    values = {f"v{size}": random.Random(size).randbytes(size) for size in sizes}
    assert all(isinstance(v, int) for v in store.put_many(list(values.items())))
    time.sleep(0.1)
    with other(pool, store) as reader:
        assert_read(reader, values)
    with (
        TransferEngine(transports=("tcp",)) as engine,
        Store(pool.endpoint, namespace=store.namespace, engine=engine) as far,
    ):
        assert_read(far, values)


def assert_read(reader: Store, values: dict[str, bytes]) -> None:
    """One by one, in parts and together."""
    assert reader.get_many(list(values)) == list(values.values())
    for name, value in values.items():
        target = bytearray(len(value))
        assert reader.get_into(name, target) == len(value)
        assert target == value
        start, length = len(value) // 3, len(value) // 2
        assert reader.get_range(name, start, length) == value[start : start + length]
    targets = [bytearray(len(value)) for value in values.values()]
    lengths = reader.get_into_many(list(zip(values, targets, strict=True)))
    assert lengths == [len(value) for value in values.values()]
    assert targets == list(values.values())
    assert {each.name.decode(): each.value_bytes for each in reader.list("v")} == {
        name: len(value) for name, value in values.items()
    }


def test_values_go_with_the_put_up_to_a_size_and_stay_where_they_are_beyond_it(
    pool: ObjectPool, store: Store
) -> None:
    whole, quarter = MAX_INLINE_BYTES, MAX_INLINE_BYTES // 4
    batches = [[whole], [whole + 1], [quarter] * 4, [quarter] * 5, [whole - 1, 1, 0], [0, 0]]
    values: dict[str, bytes] = {}
    for number, sizes in enumerate(batches):
        batch = {f"v{number}-{n}": os.urandom(size) for n, size in enumerate(sizes)}
        results = store.put_many(list(batch.items()))
        assert all(isinstance(result, int) for result in results)
        assert store.put_many(list(batch.items())) == results, "the same bytes again"
        values |= batch
    name, last = next(reversed(values.items()))
    with pytest.raises(Conflict):
        store.put("v0-0", os.urandom(whole))
    wait_for(lambda: set(store.exists_many(list(values))) == {"present"})
    with other(pool, store) as reader:
        assert reader.get_many(list(values)) == list(values.values())
        assert reader.replace(name, b"next") > 0
        assert (last, reader.get(name)) == (b"", b"next")


def test_a_put_that_arrives_after_it_was_told_to_have_failed_overtakes_nothing(
    pool: ObjectPool, store: Store
) -> None:
    """As a slow link or a stopped node brings it: the master is told first that nobody waits for it any more."""
    namespace = store.namespace
    with SyncClient(pool.endpoint) as master, SyncClient(pool.control(0)) as node:

        def give_up(name: bytes, *, replaces: bool = False, is_told: bool = True) -> Put:
            item = NameToReserve(name=name, value_bytes=3)
            hold_ms = 15_000 if is_told else 1
            reserved = master.request(
                ReserveNames(namespace=namespace, names=[item], replaces=replaces, hold_ms=hold_ms)
            )
            assert isinstance(reserved, ReserveNamesReply)
            version = reserved.names[0].version
            if is_told:
                held = msgspec.structs.replace(item, version=version)
                master.request(ReleaseNames(namespace=namespace, names=[held]))
            block = PutBlock(
                meta=object_meta(namespace, name, 3),
                source=store._client.memory.nothing,
                num_layers=1,
                version=version,
                piece_bytes=PIECE_BYTES,
                tail=b"old" + pack_footer(Footer(3)),
            )
            return Put(put_id=new_put_id(), blocks=[block])

        def arrive(put: Put) -> None:
            node.request(put)
            store.put(put.put_id.hex(), b"")  # reported with it, or behind it
            wait_for(lambda: store.exists(put.put_id.hex()) == "present")

        arrive(give_up(b"failed"))
        assert store.exists("failed") == "absent"
        for is_told in (True, False):
            name = f"deleted{is_told}"
            late = give_up(name.encode(), is_told=is_told)
            assert not store.delete(name)
            arrive(late)
            assert store.exists(name) == "absent"
            late = give_up(b"again" + name.encode(), is_told=is_told)
            store.put("again" + name, b"new")
            wait_for(lambda name=name: store.exists("again" + name) == "present")
            arrive(late)
            with other(pool, store) as reader:
                assert reader.get("again" + name) == b"new"
        store.put("replaced", b"one")
        wait_for(lambda: store.exists("replaced") == "present")
        arrive(give_up(b"replaced", replaces=True))
        # It may have failed: either is right, but the older one is never lost for it.
        wait_for(lambda: store.get("replaced") in (b"one", b"old"))


def test_a_node_that_refuses_a_value_in_a_message_reads_it_from_the_client(
    pool: ObjectPool, store: Store
) -> None:
    memory = store._client.memory
    memory.max_inline_bytes = 4 * MAX_INLINE_BYTES  # as a later release might have it
    values = {f"v{n}": os.urandom(2 * MAX_INLINE_BYTES) for n in range(2)}
    assert all(isinstance(version, int) for version in store.put_many(list(values.items())))
    assert memory.max_inline_bytes == 0, "and so it does from now on"
    store.put("v2", b"small")
    with other(pool, store) as reader:
        wait_for(lambda: reader.exists("v2") == "present")
        assert reader.get_many([*values, "v2"]) == [*values.values(), b"small"]


def test_large_values_are_read_together_by_few_threads(pool: ObjectPool, store: Store) -> None:
    values = {f"v{n}": random.Random(n).randbytes(6_000_000) for n in range(4)}
    store.put_many(list(values.items()))
    with Store(pool.endpoint, namespace=store.namespace, num_threads=2) as reader:
        wait_for(lambda: set(reader.exists_many(list(values))) == {"present"})
        assert reader.get_many(list(values), timeout_s=10.0) == list(values.values())
    store.delete_many(list(values))


def test_empty_value_miss_and_error_are_three_things(store: Store) -> None:
    store.put("empty", b"")
    assert store.get("empty") == b""
    assert store.get("missing") is None
    with Store("tcp://127.0.0.1:9", timeout_s=0.3) as lost, pytest.raises(Unavailable):
        lost.get("empty")
    assert store.exists_many(["empty", "missing"]) == ["present", "absent"]


def test_other_bytes_under_a_sealed_name_are_a_conflict(pool: ObjectPool, store: Store) -> None:
    large = os.urandom(3 << 20)
    versions = store.put_many([("a", b"one"), ("large", large)])
    time.sleep(0.05)
    with other(pool, store) as second:
        assert second.put_many([("a", b"one"), ("large", large)]) == versions
        assert isinstance(second.put_many([("a", b"two")])[0], Conflict)
        assert isinstance(second.put_many([("large", large[:-1] + b"?")])[0], Conflict)
        assert second.get("a") == b"one"
        assert second.replace("a", b"three") > versions[0]  # type: ignore[operator]
    assert store.get("a") == b"three", "also by a client that kept the old one's place"


def test_arrays_keep_dtype_and_shape(store: Store) -> None:
    value = np.arange(60_000, dtype="<f4").reshape(3, 4, -1)
    store.put("array", value)
    assert np.array_equal(store.get_array("array"), value)
    stat = store.stat("array")
    assert stat is not None
    assert (stat.dtype, stat.shape) == ("<f4", (3, 4, 5000))
    wrong = np.empty_like(value, dtype="<i4")
    assert isinstance(store.get_into_many([("array", wrong)])[0], McError)


def test_registered_memory_is_put_and_read_in_place(store: Store) -> None:
    memory = np.frombuffer(random.Random(1).randbytes(4 << 20), np.uint8).copy()
    region = store.register(memory)
    store.put_from("half", memory[: 2 << 20])
    assert store.get_into("half", memory[2 << 20 :]) == 2 << 20
    assert np.array_equal(memory[: 2 << 20], memory[2 << 20 :])
    store.deregister(region)


def test_threads_share_a_store(store: Store) -> None:
    def work(number: int) -> None:
        for index in range(10):
            name = f"{number}-{index}"
            store.put(name, name.encode() * 1000)
            if store.get(name) != name.encode() * 1000:
                wrong.append(name)

    wrong: list[str] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert len(list(store.list())) == 40


def test_a_reader_sees_one_whole_version_while_it_is_replaced(
    pool: ObjectPool, store: Store
) -> None:
    def value(number: int) -> bytes:
        return bytes([number]) * (1_500_000 if number % 2 else 30_000)

    store.put("x", value(0))
    seen: list[bytes | None] = []
    is_over = threading.Event()

    def read() -> None:
        with other(pool, store) as reader:
            while not is_over.is_set():
                seen.append(reader.get("x"))

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(1, 250):
        store.replace("x", value(number))
        if number >= 30 and len({each[0] for each in seen if each}) > 1:
            break
    is_over.set()
    thread.join(10)
    found = [each[0] for each in seen if each]
    assert all(each == value(each[0]) for each in seen if each)
    assert found == sorted(found), "an older version came back"
    assert len(set(found)) > 1


def test_a_deleted_name_is_gone_for_everyone_at_once(pool: ObjectPool, store: Store) -> None:
    with other(pool, store) as reader:
        store.put("gone", b"x" * 5000)
        time.sleep(0.05)
        assert reader.get("gone")
        assert store.delete("gone")
        assert reader.get("gone") is None
        assert not reader.delete("gone")
        reader.put("gone", b"y")
        assert reader.get("gone") == b"y"


def test_mcctl_puts_gets_lists_and_deletes(
    pool: ObjectPool,
    store: Store,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    def run(*arguments: str) -> tuple[int, bytes]:
        words = ["--endpoint", pool.endpoint, *arguments, "--namespace", store.namespace.decode()]
        return main(words), capfdbinary.readouterr().out

    value = os.urandom(3_000_000)
    for name, content in (("value", value), ("abc", b"abc"), ("abd", b"abd")):
        (tmp_path / name).write_bytes(content)
    assert run("cache", "put", "large", str(tmp_path / "value"))[0] == 0
    assert run("cache", "put", "small", str(tmp_path / "abc"))[0] == 0
    assert run("cache", "put", "small", str(tmp_path / "abd"))[0] == 4
    assert run("cache", "get", "large", "--out", str(tmp_path / "back"))[0] == 0
    assert (tmp_path / "back").read_bytes() == value
    assert run("cache", "get", "large", "--offset", "999", "--length", "5") == (0, value[999:1004])
    listed = run("--output", "json", "cache", "list", "--prefix", "la")
    assert [each["name"] for each in json.loads(listed[1])["objects"]] == ["large"]
    assert run("cache", "rm", "small", "--yes")[0] == 0
    assert run("cache", "stat", "small")[0] == 3


def test_mcctl_takes_values_of_pipes_and_names_of_any_bytes(
    pool: ObjectPool, store: Store, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def run(*arguments: str) -> tuple[int, bytes]:
        words = ["--endpoint", pool.endpoint, *arguments, "--namespace", store.namespace.decode()]
        return main(words), capfdbinary.readouterr().out

    pipe, name = tmp_path / "pipe", os.fsdecode(b"\xff\n")
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"said without a size",))
    writer.start()
    code, out = run("--output", "json", "cache", "put", name, str(pipe))
    writer.join(5)
    assert (code, json.loads(out)["name"]) == (0, "\\xff\n")
    assert run("cache", "get", name) == (0, b"said without a size")
    code, out = run("--output", "json", "cache", "get", name, "--out", str(tmp_path / name))
    assert (code, json.loads(out)["name"]) == (0, "\\xff\n")
    assert json.loads(out)["path"].endswith("\\xff\n")
    assert run("cache", "put", name, "/dev/zero")[0] == 78, "it has no end"
    code, out = run("--output", "json", "cache", "rm", name, "--yes")
    assert (code, json.loads(out)["deleted"]) == (0, ["\\xff\n"])


@pytest.mark.parametrize("kind", ["out.tar", "out"])
def test_an_export_is_imported_whole_or_not_at_all(
    store: Store, tmp_path: Path, kind: str, pool: ObjectPool
) -> None:
    values: dict[str, bytes] = {f"o{n}": os.urandom(n * 300_000) for n in range(6)}
    store.put_many(list(values.items()))
    store.put("array", np.arange(10.0).reshape(2, 5))
    path = tmp_path / kind
    assert len(export_objects(store, path, print).objects) == 7
    with Store(pool.endpoint, namespace=store.namespace + b"-2") as second:
        assert import_objects(second, path, print, replaces=False).num_put == 7
        assert second.get_many(list(values)) == list(values.values())
        assert np.array_equal(second.get_array("array"), np.arange(10.0).reshape(2, 5))
    damaged = path / "objects" / "00000005" if kind == "out" else path
    with damaged.open("r+b") as file:
        file.seek(1_500)
        file.write(b"damage")
    with Store(pool.endpoint, namespace=store.namespace + b"-3") as third:
        with pytest.raises(McError):
            import_objects(third, path, print, replaces=False)
        assert not list(third.list())


def test_an_export_that_fails_leaves_nothing_in_its_way(tmp_path: Path) -> None:
    with Store("tcp://127.0.0.1:9", timeout_s=0.2) as lost:
        for name in ("out", "out.tar"):
            with pytest.raises(Unavailable):
                export_objects(lost, tmp_path / name, print)
    assert not list(tmp_path.iterdir())


_PUT_AND_DIE = """
import os, sys, threading
from mcctl import Store
store = Store(sys.argv[1], namespace="dying")
threading.Timer(float(sys.argv[2]), lambda: os.kill(os.getpid(), 9)).start()
while True:
    store.replace("half", os.urandom(30 << 20))
"""


def test_a_put_that_finds_no_room_gives_back_what_it_took() -> None:
    """Long before its chunks would count as orphans."""
    pool = ObjectPool(1, segment="32MiB", master=("pool.orphan_s=600",))
    try:
        with Store(pool.endpoint) as store:
            with pytest.raises(Exhausted, match="no room"):
                store.put("too large", bytes(30 << 20), timeout_s=1.5)
            value = bytes(24 << 20)
            wait_for(lambda: isinstance(store.put_many([("fits", value)])[0], int), 15)
            assert store.get("fits") == value
            assert store.exists("too large") == "absent"
    finally:
        pool.close()


def test_a_client_that_dies_in_mid_put_leaves_nothing(pool: ObjectPool) -> None:
    """Chunks without their object are freed; a version that was whole before stays."""

    def used_bytes() -> int:
        return sum(node.used_bytes for node in pool.nodes())

    with Store(pool.endpoint, namespace="dying") as store:
        used_before = used_bytes()
        process = subprocess.Popen(
            [sys.executable, "-c", _PUT_AND_DIE, pool.endpoint, "0.2"],
            env={**os.environ, "TMPDIR": str(pool.directory)},
        )
        assert process.wait(60) == -signal.SIGKILL
        time.sleep(0.1)
        value = store.get("half")
        assert value is None or len(value) == 30 << 20
        store.delete("half")  # and with it the dead client's reservation
        wait_for(lambda: used_bytes() <= used_before, 20.0)
