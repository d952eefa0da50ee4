"""What a full node gives up by itself: the least recently put, of the right size, and never what is pinned hard."""

import functools
import time
from collections.abc import Iterator

import msgspec
import pytest

from daemons.core.ids import BlockHash, Incarnation
from daemons.mc_cachenode.puts.making_room import is_of_same_put, make_room
from daemons.mc_cachenode.replica import Replica, wall_ms
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.protocol.block import BlockMeta
from daemons.protocol.pin import Pin
from daemons.store.segment.segment import Segment

NUM_LAYERS = 6


def meta(number: int) -> BlockMeta:
    block_hash = BlockHash(number.to_bytes(16, "big"))
    return BlockMeta(
        hash=block_hash, parent=block_hash, namespace=b"n", depth=number, num_tokens=1, model="m"
    )


@pytest.fixture
def segment() -> Iterator[Segment]:
    """Eight slots of a page."""
    made = Segment.create(8 * 4096, slab_bytes=8 * 4096)
    yield made
    made.close()


def full(segment: Segment) -> ReplicaTable:
    replicas = ReplicaTable(segment)
    for number in range(8):
        replicas.seal(replicas.begin(meta(number), 3840, NUM_LAYERS), 7)
    return replicas


def test_hard_pins_are_kept_and_soft_ones_go_last(segment: Segment) -> None:
    replicas = full(segment)
    now_s = time.monotonic()
    pins = [
        Pin(hash=meta(0).hash, is_hard=True, ttl_ms=60_000),
        Pin(hash=meta(1).hash, is_hard=False, ttl_ms=60_000, is_own=False),
        Pin(hash=meta(2).hash, is_hard=True, ttl_ms=1),
    ]
    replicas.remembered.pins.hold(pins, Incarnation(3), now_s=now_s - 0.01, now_ms=wall_ms())
    went = []
    for number in range(8, 15):
        went += make_room(replicas, 3840, NUM_LAYERS)
        replicas.begin(meta(number), 3840, NUM_LAYERS)
    assert went == [meta(number).hash for number in (2, 3, 4, 5, 6, 7, 1)]
    assert make_room(replicas, 3840, NUM_LAYERS) == []
    assert replicas.writing_bytes == 7 * 3840
    assert replicas.remembered.pins.news_for(Incarnation(3), now_s=now_s) == []
    (told,) = replicas.remembered.pins.news_for(Incarnation(4), now_s=now_s + 20)
    assert (told.hash, told.is_hard) == (meta(0).hash, True)
    assert 39_000 < told.ttl_ms <= 40_000


def test_one_of_the_same_size_is_enough_and_what_somebody_reads_stays(segment: Segment) -> None:
    replicas = full(segment)
    read = replicas.get(meta(0).hash)
    assert read is not None
    replicas.hold(read)
    assert make_room(replicas, 3840, NUM_LAYERS) == [meta(1).hash]
    assert replicas.get(meta(0).hash) is read


def test_what_a_lower_tier_takes_first_makes_no_room_yet(segment: Segment) -> None:
    replicas = full(segment)
    asked: list[BlockHash] = []

    def leaves_later(replica: Replica) -> bool:
        asked.append(replica.meta.hash)
        return True

    assert make_room(replicas, 3840, NUM_LAYERS, leaves_later) == []
    assert asked == [meta(0).hash]
    assert replicas.num_sealed == 8


def test_what_can_never_fit_costs_nothing(segment: Segment) -> None:
    replicas = full(segment)
    assert make_room(replicas, 9 * 4096, NUM_LAYERS) == []
    assert replicas.num_sealed == 8


def test_a_value_does_not_push_out_its_own_chunks(segment: Segment) -> None:
    """Its put would succeed, and nobody could read it."""
    value = msgspec.structs.replace(meta(100), name=b"value")
    chunks = [msgspec.structs.replace(meta(n), parent=value.hash) for n in range(9)]
    replicas = ReplicaTable(segment)
    for number, chunk in enumerate(chunks[:8]):
        version = 8 if number == 5 else 9
        replicas.seal(replicas.begin(chunk, 3840, NUM_LAYERS, version=version), 7)
    for part, went in ((chunks[8], [chunks[5].hash]), (value, [])):
        stays = functools.partial(is_of_same_put, part, 9)
        assert make_room(replicas, 3840, NUM_LAYERS, stays=stays) == went
        if went:
            replicas.begin(part, 3840, NUM_LAYERS, version=9)
