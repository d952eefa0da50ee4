"""Which bucket goes, and what the second chance is worth."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from unit.store.ssd.crash_disk import CrashDisk, aligned_copy
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.clock import ManualClock
from daemons.core.ids import BlockHash
from daemons.core.units import KIB
from daemons.store.ssd import SsdSettings, SsdTier
from daemons.store.ssd.files import ALIGN
from daemons.store.ssd.reclaim import BucketUse, Victim, choose_victim

NUM_BUCKETS = 12
BUCKET = 48 * ALIGN


def test_mostly_garbage_is_compacted_before_anything_is_evicted() -> None:
    uses = [BucketUse(1, 100, 90), BucketUse(2, 100, 30), BucketUse(3, 100, 60)]
    assert choose_victim(uses, room=50) == Victim(2, is_compacted=True)
    assert choose_victim(uses, room=20) == Victim(1, is_compacted=False)
    assert choose_victim(uses[:1] + uses[2:], room=99) == Victim(1, is_compacted=False)
    assert choose_victim([], room=99) is None


def test_an_evicted_block_is_reported_and_gone_after_a_restart() -> None:
    disk = CrashDisk()
    dropped: list[BlockHash] = []

    def on_dropped(hashes: Sequence[BlockHash], why: str) -> None:
        assert why == "evicted"
        dropped.extend(hashes)

    settings = SsdSettings(capacity_bytes=4 * BUCKET, bucket_bytes=BUCKET, read_workers=0)
    tier = SsdTier(disk.directory(), settings, on_dropped=on_dropped)
    for number in range(400):
        tier.put(*make_block(number))
        tier.run_once()
    assert set(dropped) | set(tier.hashes()) == {key(number) for number in range(400)}
    assert not set(dropped) & set(tier.hashes())
    disk.crash()
    assert not set(dropped) & set(SsdTier(disk.directory(), settings).hashes())


@pytest.mark.parametrize("is_disk_small", [False, True])
def test_a_full_tier_says_so_before_it_gives_up_what_was_put_since(is_disk_small: bool) -> None:
    room = 8 * BUCKET
    disk = CrashDisk(capacity_bytes=room) if is_disk_small else CrashDisk()
    capacity_bytes = 20 * BUCKET if is_disk_small else room
    settings = SsdSettings(capacity_bytes=capacity_bytes, bucket_bytes=BUCKET, read_workers=0)
    tier = SsdTier(disk.directory(), settings)
    old = _put_until(tier, 0, lambda: bool(tier.leaving()))
    assert not tier.is_full_since(tier.mark() + 1)
    mark = tier.mark()
    end = _put_until(tier, old, lambda: tier.is_full_since(mark))
    assert all(tier.get(key(number)) for number in range(old, end))
    assert tier.get(key(0)) is None, "what was there before made room"
    assert end - old > 4 * (BUCKET // ALIGN // 2), "most of it was used"
    assert not tier.is_full_since(tier.mark()), "another wish begins with all of it"


def _put_until(tier: SsdTier, first: int, is_enough: Callable[[], bool]) -> int:
    for number in range(first, first + 1000):
        if is_enough():
            return number
        tier.put(*make_block(number))
        tier.run_once()
    raise AssertionError("never")


def test_what_was_read_outlives_what_was_not() -> None:
    settings = SsdSettings(capacity_bytes=4 * BUCKET, bucket_bytes=BUCKET, read_workers=0)
    tier = SsdTier(CrashDisk().directory(), settings)
    target = aligned_copy(bytes(2 * KIB))
    for number in range(400):
        tier.put(*make_block(number))
        tier.run_once()
        if number >= 5:
            for hot in range(5):
                tier.read(key(hot), target)
    assert all(tier.get(key(hot)) for hot in range(5))
    assert tier.get(key(5)) is None


def replay(kept_fraction: float, accesses: Sequence[int]) -> tuple[float, float]:
    """(hit ratio, write amplification)"""
    settings = SsdSettings(
        capacity_bytes=NUM_BUCKETS * BUCKET,
        bucket_bytes=BUCKET,
        batch_bytes=4 * ALIGN,
        read_workers=0,
        kept_fraction=kept_fraction,
    )
    tier = SsdTier(CrashDisk().directory(), settings, clock=ManualClock())
    target = aligned_copy(bytes(2 * KIB))
    hits = 0
    for number in accesses:
        if tier.get(key(number)) is not None:
            tier.read(key(number), target)
            hits += 1
        else:
            tier.put(*make_block(number))
            tier.run_once()
    counters = tier.counters
    written = counters.put_bytes + counters.copied_bytes
    return hits / len(accesses), written / counters.put_bytes


def replay_lru(accesses: Sequence[int]) -> float:
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for number in accesses:
        hits += number in held
        held[number] = None
        held.move_to_end(number)
        if len(held) > NUM_BUCKETS * BUCKET // ALIGN:
            held.popitem(last=False)
    return hits / len(accesses)


def zipf(num_keys: int, num_accesses: int) -> list[int]:
    random = np.random.default_rng(3)
    weights = 1 / np.arange(1, num_keys + 1) ** 0.9
    return [int(k) for k in random.choice(num_keys, num_accesses, p=weights / weights.sum())]


def test_a_second_chance_comes_near_lru_for_few_writes() -> None:
    accesses = zipf(3000, 10_000)
    fifo, fifo_written = replay(0.0, accesses)
    kept, kept_written = replay(0.5, accesses)
    lru = replay_lru(accesses)
    print(f"{fifo=:.3f} {kept=:.3f} {lru=:.3f} {fifo_written=:.2f} {kept_written=:.2f}")  # noqa: T201
    assert fifo_written == 1.0
    assert kept > fifo
    assert kept > 0.95 * lru
    assert kept_written < 1.6
