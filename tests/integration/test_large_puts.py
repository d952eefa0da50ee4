"""Large values that fit in the pool one at a time, put at once by several clients: each has its turn."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from kit.daemon import wait_for
from kit.object_pool import ObjectPool

from daemons.client.objects import reservations
from daemons.client.objects.parts import Item, Part, PartMaker
from daemons.core.errors import Exhausted, McError
from daemons.core.ids import new_put_id
from daemons.core.units import MIB
from daemons.protocol.objects import (
    NameToReserve,
    ReservedName,
    ReserveNames,
    ReserveNamesReply,
)
from daemons.rpc import SyncClient
from mcctl import Store

LARGE = 40 * MIB
HOLD_S = 2.0


@pytest.fixture(scope="module")
def pool() -> Iterator[ObjectPool]:
    """One node of 64 MiB. What is put in vain is not found as an orphan before a test ends."""
    made = ObjectPool(1, master=("pool.orphan_s=600",))
    yield made
    made.close()


@pytest.fixture
def stores(pool: ObjectPool) -> Iterator[list[Store]]:
    """Of three clients."""
    made = [Store(pool.endpoint, namespace=new_put_id().hex()) for _ in range(3)]
    yield made
    for store in made:
        store.close()


def value_of(number: int) -> bytes:
    return bytes([number + 1]) * LARGE


def put_at_once(stores: Sequence[Store], name: str) -> list[int | McError]:
    """By each store a value of its own."""
    barrier = threading.Barrier(len(stores))

    def put(number: int) -> int | McError:
        barrier.wait()
        try:
            return stores[number].put(name, value_of(number), timeout_s=60.0)
        except McError as error:
            return error

    with ThreadPoolExecutor(len(stores)) as threads:
        return list(threads.map(put, range(len(stores))))


def test_large_puts_at_once_all_succeed(stores: list[Store]) -> None:
    """Without turns each takes a part of the pool, waits for the rest, and all fail."""
    for round_number in range(3):
        name = f"large{round_number}"
        results = put_at_once(stores, name)
        assert all(isinstance(result, int) for result in results), results
        last = [store.get(name) for store in stores]
        assert any(found == value_of(number) for number, found in enumerate(last))


def test_values_of_one_call_that_fit_one_at_a_time_are_put_so(stores: list[Store]) -> None:
    values = [(f"v{number}", value_of(number)) for number in range(3)]
    results = stores[0].put_many([*values, ("small", b"value")], timeout_s=60.0)
    assert all(isinstance(result, int) for result in results), results


def reserve(pool: ObjectPool, item: NameToReserve, hold_s: float) -> ReservedName:
    with SyncClient(pool.endpoint) as master:
        message = ReserveNames(namespace=b"held", names=[item], hold_ms=int(hold_s * 1000))
        reply = master.request(message)
    assert isinstance(reply, ReserveNamesReply)
    return reply.names[0]


def test_one_that_waited_in_vain_says_for_what(pool: ObjectPool, stores: list[Store]) -> None:
    held = reserve(pool, NameToReserve(name=b"held", value_bytes=LARGE), 60.0)
    with pytest.raises(Exhausted, match=r"other puts in progress \(1\) hold 40\.0 MiB"):
        stores[0].put("large", value_of(0), timeout_s=0.5)
    stores[0].put("small", b"waits for nobody", timeout_s=5.0)
    # Whoever gave it up, or is not heard of any more:
    item = NameToReserve(name=b"held", value_bytes=LARGE, version=held.version)
    assert reserve(pool, item, 0.0).status == "reserved"
    stores[0].put("large", value_of(0), timeout_s=60.0)


def test_a_client_that_dies_holds_room_no_longer_than_its_hold(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunks are all there, and nothing of them can be seen."""

    class Died(BaseException):
        pass

    def die(_maker: PartMaker, _item: Item) -> Part:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(reservations, "_HOLD_S", HOLD_S)
        patched.setattr(PartMaker, "manifest", die)
        with pytest.raises(Died):
            stores[0].put("dead", value_of(0), timeout_s=60.0)
    stores[1].put("large", value_of(1), timeout_s=60.0)
    assert stores[1].get("large") == value_of(1)
    assert stores[2].exists("dead") == "absent"


def test_one_that_was_not_heard_of_in_time_does_not_go_on(pool: ObjectPool) -> None:
    """Its chunks may be gone already."""
    item = NameToReserve(name=b"silent", value_bytes=LARGE)
    held = reserve(pool, item, 0.1)
    item = NameToReserve(name=b"silent", value_bytes=LARGE, version=held.version)
    wait_for(lambda: reserve(pool, item, 0.0).status == "lost")
    assert "did not hear of it" in reserve(pool, item, 0.0).why
