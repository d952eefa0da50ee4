"""AsyncStore with real daemons: many calls at a time on few threads, deadlines, and calls that are cancelled."""

import asyncio
import random
import signal
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import numpy as np
import pytest
from kit.object_pool import ObjectPool

from daemons.core.errors import Conflict, Rejected, Unavailable
from mcctl import AsyncStore, Store

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def pool() -> Iterator[ObjectPool]:
    pool = ObjectPool(1)
    yield pool
    pool.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_values_come_back_by_every_verb(pool: ObjectPool) -> None:
    values = {
        f"v{size}": random.Random(size).randbytes(size) for size in [0, 1, 4096, 70_000, 9 << 20]
    }

    async def main() -> None:
        async with AsyncStore(pool.endpoint, namespace="verbs", timeout_s=20.0) as store:
            assert all(isinstance(each, int) for each in await store.put_many([*values.items()]))
            for name, value in values.items():
                assert await store.get(name) == value
                target = bytearray(len(value))
                assert await store.get_into(name, target) == len(value)
                assert target == value
                part = await store.get_range(name, len(value) // 3, 1000)
                assert part == value[len(value) // 3 :][:1000]
            assert await store.get("missing") is None
            assert await store.exists_many(["v1", "missing"]) == ["present", "absent"]
            assert {each.name.decode() async for each in store.list("v")} == set(values)
            with pytest.raises(Conflict):
                await store.put("v1", b"other")
            version = await store.replace("v1", b"other")
            stat = await store.stat("v1")
            assert stat is not None
            assert (stat.version, stat.value_bytes) == (version, 5)
            array = np.arange(12, dtype=np.float32).reshape(3, 4)
            await store.put("array", array)
            assert np.array_equal(await store.get_array("array"), array)
            await store.pin("array", is_hard=True)
            await store.unpin("array")
            with pytest.raises(Rejected):
                await store.get_range("array", -1, 2)
            assert await store.delete("array")
            assert await store.get("array") is None
        with Store(pool.endpoint, namespace="verbs", timeout_s=20.0) as store:
            assert store.get("v1") == b"other"

    run(main())


def test_hundreds_of_calls_at_a_time_share_few_threads(pool: ObjectPool) -> None:
    async def main() -> None:
        async with AsyncStore(
            pool.endpoint, namespace="many", timeout_s=60.0, num_threads=2
        ) as store:
            await store.put("first", b"x")
            before = threading.active_count()
            names = [f"n{number}" for number in range(300)]
            await asyncio.gather(*(store.put(name, name.encode()) for name in names))
            found = await asyncio.gather(*(store.get(name) for name in names))
            assert found == [name.encode() for name in names]
            states = await asyncio.gather(*(store.exists(name) for name in names))
            assert set(states) == {"present"}
            assert threading.active_count() <= before + 4

    run(main())


def test_a_cancelled_put_gives_its_memory_and_its_name_back(pool: ObjectPool) -> None:
    async def main() -> None:
        async with AsyncStore(pool.endpoint, namespace="cancelled", timeout_s=60.0) as store:
            await store.put("before", b"x")
            memory = store._client.memory
            free = len(memory._free_guards)
            pool.signal("node-0", signal.SIGSTOP)
            try:
                put = asyncio.create_task(store.put("name", b"1" * 40_000))
                for _ in range(3000):
                    if len(memory._free_guards) < free:
                        break  # it is under way
                    await asyncio.sleep(0.01)
                assert len(memory._free_guards) < free
                await asyncio.sleep(0.3)
                put.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await put
                assert len(memory._free_guards) == free
            finally:
                pool.signal("node-0", signal.SIGCONT)
            await store.replace("name", b"2" * 40_000)
            assert await store.get("name") == b"2" * 40_000

    run(main())


def test_a_read_that_is_cancelled_writes_no_more(pool: ObjectPool) -> None:
    value = random.Random(1).randbytes(8 << 20)

    async def main() -> None:
        async with AsyncStore(pool.endpoint, namespace="reads", timeout_s=60.0) as store:
            await store.put("large", value)
            for delay_s in (0.0, 0.001, 0.004, 0.02):
                target = bytearray(len(value))
                read = asyncio.create_task(store.get_into("large", target))
                await asyncio.sleep(delay_s)
                read.cancel()
                try:
                    await read
                except asyncio.CancelledError:
                    target[:] = bytes(len(value))
                    await asyncio.sleep(0.02)
                    assert not np.frombuffer(target, np.uint8).any()
            assert await store.get("large") == value
            await store.delete("large")

    run(main())


def test_a_master_that_is_gone_costs_a_call_its_deadline_and_no_more(pool: ObjectPool) -> None:
    async def main() -> None:
        async with AsyncStore(pool.endpoint, namespace="gone", timeout_s=20.0) as store:
            await store.put("kept", b"x")
            pool.kill("master")
            store._verbs.timeout_s = 0.5
            with pytest.raises(Unavailable):
                await store.exists("kept")
            store._verbs.timeout_s = 30.0
            pool.start_master()
            pool.wait_joined(1)
            for _ in range(600):
                if await store.exists("kept") == "present":
                    break
                await asyncio.sleep(0.05)
            assert await store.exists("kept") == "present"

    run(main())
