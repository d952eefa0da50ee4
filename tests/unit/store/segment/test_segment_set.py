"""Several segments as one: who gets the next block, what counts, what a segment on its way out does not take."""

import contextlib

import pytest

from daemons.core.errors import Exhausted
from daemons.store.segment.segment import Segment
from daemons.store.segment.segment_set import SegmentSet

SLAB = 4 * 4096
BLOCK = 4096


@pytest.fixture
def pool() -> SegmentSet:
    made = SegmentSet(Segment.create(4 * SLAB, slab_bytes=SLAB))
    made.add(Segment.create(8 * SLAB, slab_bytes=SLAB, number=1))
    return made


def fill(pool: SegmentSet) -> list[tuple[int, int]]:
    """(segment, offset) of all blocks it takes."""
    found = []
    with contextlib.suppress(Exhausted):
        while True:
            segment, offset = pool.allocate(BLOCK)
            found.append((segment.number, offset))
    with pytest.raises(Exhausted, match="in 2 segments used, the rest is free in slots"):
        pool.allocate(BLOCK)
    return found


def test_blocks_go_where_the_most_is_free_a_slab_at_a_time(pool: SegmentSet) -> None:
    found = fill(pool)
    assert len(set(found)) == len(found) == 48
    numbers = [number for number, _ in found]
    assert numbers[:4] in ([0] * 4, [1] * 4), "blocks put together lie together"
    for end in range(12, 49, 12):
        assert abs(numbers[:end].count(1) - 2 * end / 3) <= 4, "the larger one gets twice as much"
    assert pool.used_bytes == pool.usable_bytes == 12 * SLAB


def test_a_leaving_segment_takes_nothing_and_counts_for_nothing(pool: SegmentSet) -> None:
    second = pool.get(1)
    assert second is not None
    offset = second.allocate(BLOCK)
    pool.leave(second)
    assert (pool.used_bytes, pool.capacity_bytes) == (0, 4 * SLAB)
    assert {pool.allocate(BLOCK)[0].number for _ in range(16)} == {0}
    with pytest.raises(Exhausted):
        pool.allocate(BLOCK)
    second.free(offset)
    pool.remove(second)
    assert [segment.number for segment in pool] == [0]


def test_a_block_for_which_one_segment_is_too_small_goes_into_the_other() -> None:
    pool = SegmentSet(Segment.create(SLAB, slab_bytes=SLAB))
    pool.add(Segment.create(4 * SLAB, slab_bytes=2 * SLAB, number=1))
    assert pool.slab_bytes == 2 * SLAB
    assert pool.allocate(2 * SLAB)[0].number == 1
    with pytest.raises(Exhausted, match="exceeds the slabs of 32"):
        pool.allocate(2 * SLAB + 1)
