"""Of two that write under one name the later goes on, and the earlier says why it does not."""

import pytest
from unit.store.object.memory_bucket import MemoryBucket
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.clock import ManualClock
from daemons.core.errors import Unavailable
from daemons.core.units import KIB
from daemons.store.object import ObjectSettings, ObjectTier
from daemons.store.object.life import LIVES

SETTINGS = ObjectSettings(capacity_bytes=512 * KIB, part_bytes=64 * KIB, read_workers=0)


def opened(bucket: MemoryBucket, clock: ManualClock) -> ObjectTier:
    tier = ObjectTier(bucket, SETTINGS, clock=clock)
    while tier.run_once():
        pass
    assert tier.is_open
    return tier


def work(tier: ObjectTier, clock: ManualClock) -> None:
    clock.advance(11.0)
    while tier.run_once():
        pass


def lives(bucket: MemoryBucket) -> list[str]:
    return [found.key for found in bucket.list(LIVES)]


def test_the_earlier_of_two_stops_writing_and_says_so() -> None:
    bucket, clock = MemoryBucket(), ManualClock()
    first = opened(bucket, clock)
    second = opened(bucket, clock)
    late, good = first.put(*make_block(1)), second.put(*make_block(2))
    work(first, clock)
    assert "another node" in str(first.why_resting)
    work(second, clock)
    with pytest.raises(Unavailable, match=r"same object.prefix and node.id"):
        late.result(0)
    assert good.result(0)
    for _ in range(3):
        clock.advance(100.0)
        again = first.put(*make_block(3))
        work(first, clock)
        with pytest.raises(Unavailable, match="another node"):
            again.result(0)
    assert second.read(key(2)) == make_block(2)[1]


def test_a_full_tier_says_so_before_it_gives_up_what_was_put_since() -> None:
    clock = ManualClock()
    tier = opened(MemoryBucket(), clock)
    mark, put = tier.mark(), 0
    while not tier.is_full_since(mark):
        tier.put(*make_block(put, layer_bytes=16 * KIB))
        work(tier, clock)
        put += 1
        assert put < 100
    assert put * 32 * KIB > SETTINGS.capacity_bytes // 2
    assert all(tier.get(key(number)) for number in range(put))
    assert not tier.is_full_since(tier.mark()), "another wish may take the place of this one"


def test_a_node_that_starts_again_goes_on_and_leaves_one_key() -> None:
    bucket, clock = MemoryBucket(), ManualClock()
    for number in range(5):
        tier = opened(bucket, clock)
        done = tier.put(*make_block(number))
        work(tier, clock)
        assert done.result(0)
    work(tier, clock)
    assert len(lives(bucket)) == 1
    assert tier.num_blocks == 5


def test_a_store_that_is_down_at_the_start_gets_one_key_all_the_same() -> None:
    bucket, clock = MemoryBucket(is_down=True), ManualClock()
    tier = ObjectTier(bucket, SETTINGS, clock=clock)
    for _ in range(3):
        clock.advance(100.0)
        assert not tier.run_once()
    bucket.is_down = False
    clock.advance(100.0)
    while tier.run_once():
        pass
    assert tier.is_open
    assert len(lives(bucket)) == 1
