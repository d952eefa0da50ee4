"""What a node says it is short of, how often, and which slabs it offers."""

import itertools
from collections.abc import Iterator

import pytest

from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash
from daemons.mc_cachenode.puts import shortages as module
from daemons.mc_cachenode.puts.shortages import Shortages
from daemons.mc_cachenode.replica import Replica
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.protocol.block import BlockMeta
from daemons.store.segment.segment import Segment

PAGE, NUM_LAYERS = 4096, 1
SLAB = 8 * PAGE


class Clock:
    """What the module takes for time."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def replicas() -> Iterator[ReplicaTable]:
    """Three slabs of eight pages."""
    segment = Segment.create(3 * SLAB, slab_bytes=SLAB)
    yield ReplicaTable(segment)
    segment.close()


def hash_of(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "big"))


def seal(replicas: ReplicaTable, number: int, pages: int) -> Replica:
    key = hash_of(number)
    meta = BlockMeta(hash=key, parent=key, namespace=b"n", depth=0, num_tokens=1, model="m")
    made = replicas.begin(meta, pages * PAGE - 256, NUM_LAYERS)
    replicas.seal(made, 7)
    return made


def fill(replicas: ReplicaTable) -> None:
    """Every slab that is free, by something that is being written."""
    pages = replicas.segments.slab_bytes // PAGE
    for number in itertools.count(1000):
        key = hash_of(number)
        meta = BlockMeta(hash=key, parent=key, namespace=b"n", depth=0, num_tokens=1, model="m")
        try:
            replicas.begin(meta, pages * PAGE - 256, NUM_LAYERS)
        except Exhausted:
            return


def test_a_size_is_asked_for_once_with_some_to_spare(clock: Clock, replicas: ReplicaTable) -> None:
    fill(replicas)
    shortages = Shortages(replicas)
    assert not shortages.take()
    assert shortages.want(3 * PAGE - 10)
    assert shortages.want(2 * PAGE)
    asked = shortages.take()
    assert [(each.slot_bytes, each.num_slots) for each in asked] == [(3 * PAGE, 1), (2 * PAGE, 1)]
    assert not shortages
    assert not shortages.want(3 * PAGE), "the answer is on its way"
    shortages.on_answer(asked, [])
    assert not shortages.want(3 * PAGE), "there was nothing to give just now"
    clock.now_s += 0.2
    assert shortages.want(3 * PAGE)
    assert not shortages.want(9 * PAGE), "this fits nowhere"


def test_of_small_slots_a_part_of_a_slab_is_asked_for() -> None:
    segment = Segment.create(64 * PAGE, slab_bytes=64 * PAGE)
    replicas = ReplicaTable(segment)
    fill(replicas)
    shortages = Shortages(replicas)
    shortages.want(PAGE)
    assert [each.num_slots for each in shortages.take()] == [8]
    segment.close()


def test_it_is_asked_again_once_the_victims_have_left(clock: Clock, replicas: ReplicaTable) -> None:
    seal(replicas, 1, 8)
    fill(replicas)
    shortages = Shortages(replicas)
    shortages.want(2 * PAGE)
    shortages.on_answer(shortages.take(), [hash_of(1)])
    clock.now_s += 0.5
    assert not shortages.want(2 * PAGE), "a lower tier takes it first"
    replicas.free(hash_of(1))
    assert shortages.want(2 * PAGE)
    shortages.on_answer(shortages.take(), [hash_of(2)])
    assert shortages.want(2 * PAGE), "it has left"


def test_victims_that_do_not_leave_are_waited_for_a_while(
    clock: Clock, replicas: ReplicaTable
) -> None:
    seal(replicas, 1, 8)
    fill(replicas)
    shortages = Shortages(replicas)
    shortages.want(2 * PAGE)
    shortages.on_answer(shortages.take(), [hash_of(1)])
    clock.now_s += 1.1
    assert shortages.want(2 * PAGE)


@pytest.mark.usefixtures("clock")
def test_what_has_found_room_meanwhile_is_not_asked_for(replicas: ReplicaTable) -> None:
    seal(replicas, 1, 8)
    fill(replicas)
    shortages = Shortages(replicas)
    shortages.want(2 * PAGE)
    replicas.free(hash_of(1))
    assert shortages.take() == []
    assert not shortages


@pytest.mark.usefixtures("clock")
def test_slabs_of_other_sizes_are_offered_whole(replicas: ReplicaTable) -> None:
    small = [seal(replicas, number, 1) for number in range(8)]
    seal(replicas, 8, 2)
    seal(replicas, 9, 4)
    key = hash_of(10)
    meta = BlockMeta(hash=key, parent=key, namespace=b"n", depth=0, num_tokens=1, model="m")
    replicas.begin(meta, 4 * PAGE - 256, NUM_LAYERS)  # which is being written
    shortages = Shortages(replicas)
    shortages.want(4 * PAGE)
    (asked,) = shortages.take()
    assert asked.slabs == [[each.meta.hash for each in small], [hash_of(8)]]


@pytest.mark.usefixtures("clock")
def test_a_slab_of_which_a_block_is_held_or_replaced_is_not_offered(replicas: ReplicaTable) -> None:
    held = seal(replicas, 0, 1)
    replicas.hold(held)
    seal(replicas, 8, 2)
    replicas.begin(held.meta, 4 * PAGE - 256, NUM_LAYERS, version=2)
    replaced = seal(replicas, 9, 2)
    replicas.begin(replaced.meta, 4 * PAGE - 256, NUM_LAYERS, version=2)
    shortages = Shortages(replicas)
    shortages.want(3 * PAGE)
    assert [each.slabs for each in shortages.take()] == [[]]


def test_slabs_are_looked_for_at_times_and_offered_while_they_are_whole(
    clock: Clock, replicas: ReplicaTable
) -> None:
    seal(replicas, 0, 1)
    seal(replicas, 1, 1)
    fill(replicas)
    shortages = Shortages(replicas)

    def offered() -> list[list[BlockHash]]:
        clock.now_s += 0.11
        assert shortages.want(4 * PAGE)
        (asked,) = shortages.take()
        shortages.on_answer([asked], [])
        return asked.slabs

    assert offered() == [[hash_of(0), hash_of(1)]]
    assert offered() == [[hash_of(0), hash_of(1)]]
    seal(replicas, 2, 1)
    assert offered() == [], "it is not whole any more, as it was found"
    assert offered() == [[hash_of(0), hash_of(1), hash_of(2)]], "it was looked for again"
