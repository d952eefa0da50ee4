"""Which of our own puts the master may not have heard of yet."""

import pytest

from daemons.client.objects import cache as module
from daemons.client.objects.cache import Found, ObjectCache
from daemons.client.objects.reader import Place
from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockLocation
from daemons.protocol.segment import DataAddress, RegionRef

ADDRESS = DataAddress(host_id=HostId("h"), unix_path="", tcp="h:1", epoch=Epoch(1))
REGION = RegionRef(address=ADDRESS, region_id=1, size_bytes=1 << 30)


class Clock:
    """What the module takes for time."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        self.now_s += 0.001
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def put(cache: ObjectCache, number: int, node: str, version: int = 1) -> None:
    at = BlockLocation(
        hash=BlockHash(number.to_bytes(16, "big")),
        node=NodeId(node),
        region=REGION,
        offset=0,
        length=1,
        version=version,
        seal_checksum=1,
        num_layers=1,
        trailer_bytes=1,
    )
    cache.put_own(f"o{number}".encode(), Found([Place(at)], 1, 1e9))


def numbers(cache: ObjectCache, *names: bytes) -> list[int]:
    return [int.from_bytes(each.key, "big") for each in cache.unheard(names or None)]


@pytest.mark.usefixtures("clock")
def test_of_each_node_the_newest_is_waited_for_and_of_names_each() -> None:
    cache = ObjectCache()
    for number, node in enumerate("aabba"):
        put(cache, number, node)
    assert sorted(numbers(cache)) == [3, 4]
    assert numbers(cache, b"o0", b"o2", b"nobody's") == [0, 2]


@pytest.mark.usefixtures("clock")
def test_what_was_heard_takes_with_it_what_the_node_told_before() -> None:
    cache = ObjectCache()
    for number, node in enumerate("aba"):
        put(cache, number, node)
    told = cache.unheard(None)
    put(cache, 3, "b")
    put(cache, 1, "b", version=2)
    cache.heard(told)
    assert numbers(cache) == [1]
    assert numbers(cache, b"o0", b"o1", b"o2", b"o3") == [1, 3]


def test_what_was_deleted_or_put_long_ago_is_not_waited_for(clock: Clock) -> None:
    cache = ObjectCache()
    put(cache, 0, "a")
    put(cache, 1, "a")
    cache.forget(b"o1")
    assert numbers(cache) == [0]
    clock.now_s += 11
    assert numbers(cache) == []
