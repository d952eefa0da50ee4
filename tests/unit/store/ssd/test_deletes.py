"""A block that was deleted never comes back: the orders of events that make it hard."""

import errno
from random import Random

import pytest
from unit.store.ssd.crash_disk import CrashDisk, aligned_copy
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.clock import ManualClock
from daemons.core.errors import McError, Unavailable
from daemons.core.ids import BlockHash
from daemons.store.segment.seal import BadSeal
from daemons.store.ssd import SsdSettings, SsdTier
from daemons.store.ssd.files import ALIGN
from daemons.store.ssd.write_queue import WriteQueue

BUCKET = 17 * ALIGN  # 16 records and a footer
SETTINGS = SsdSettings(
    capacity_bytes=4 * BUCKET + 4 * ALIGN,  # and the log of deletes
    bucket_bytes=BUCKET,
    batch_bytes=4 * ALIGN,
    read_workers=0,
)


def opened(disk: CrashDisk, clock: ManualClock | None = None) -> SsdTier:
    return SsdTier(disk.directory(), SETTINGS, clock=clock or ManualClock())


def fill(tier: SsdTier, *numbers: int) -> None:
    """A page each."""
    for number in numbers:
        tier.put(*make_block(number))
        tier.run_once()


def write_out(tier: SsdTier) -> None:
    while tier.run_once():
        pass


@pytest.mark.parametrize("seed", range(20))
def test_after_a_put_that_failed(seed: int) -> None:
    disk = CrashDisk(random=Random(seed))
    tier = opened(disk)
    fill(tier, 0)
    disk.fault = lambda name: OSError(errno.EIO, "EIO") if name == "sync" else None
    put = tier.put(*make_block(1))
    tier.run_once()
    assert isinstance(put.exception(0), McError)
    deleted = tier.delete([key(1)])
    assert not deleted.done()
    disk.fault = lambda _: None
    disk.crash()
    # The header may be there; the delete was not answered, so either is right. Now it is:
    tier = opened(disk)
    tier.delete([key(1)])
    write_out(tier)
    disk.crash()
    assert opened(disk).get(key(1)) is None


def test_behind_what_a_failed_write_left() -> None:
    """The write reached the disk and its sync failed: nothing may be appended before that is cut away."""
    disk, clock = CrashDisk(), ManualClock()
    tier = opened(disk, clock)
    fill(tier, 9)
    disk.fault = lambda name: OSError(errno.EIO, "EIO") if name == "sync" else None
    puts = [tier.put(*make_block(number)) for number in range(3)]
    tier.run_once()
    assert all(isinstance(put.exception(0), McError) for put in puts)
    disk.fault = lambda _: None
    clock.advance(SETTINGS.rest_s)
    deleted = tier.delete([key(2)])
    write_out(tier)
    assert deleted.result(0)
    disk.crash()
    assert set(opened(disk).hashes()) == {key(9)}


def test_while_it_is_copied() -> None:
    """The copy is on disk before the tombstone, and the index does not follow it there."""
    disk = CrashDisk()
    tier = opened(disk)
    fill(tier, *range(16))
    tier.delete([key(number) for number in range(10)])
    fill(tier, 40)
    deleted = []

    def delete_beside(call: str) -> None:
        if call == "sync" and not deleted:
            deleted.append(tier.delete([key(12)]))

    disk.fault = delete_beside
    assert tier._writer._reclaimer.step(BUCKET)
    assert tier.counters.copied_blocks == 6
    assert tier.get(key(12)) is None
    tier.check_invariants()
    write_out(tier)
    assert deleted[0].result(0)
    disk.crash()
    assert set(opened(disk).hashes()) == {key(n) for n in (10, 11, 13, 14, 15, 40)}


@pytest.mark.parametrize("seed", range(20))
def test_while_its_bucket_cannot_be_removed(seed: int) -> None:
    disk, clock = CrashDisk(random=Random(seed)), ManualClock()
    tier = opened(disk, clock)
    disk.fault = lambda name: OSError(errno.EIO, "EIO") if name == "unlink" else None
    number = 0
    while tier.why_resting is None:
        fill(tier, number)
        number += 1
    disk.fault = lambda _: None
    clock.advance(SETTINGS.rest_s)
    check_deleted(tier, disk, [key(n) for n in range(8)])


@pytest.mark.parametrize("seed", range(20))
def test_just_after_it_was_evicted(seed: int) -> None:
    disk = CrashDisk(random=Random(seed))
    tier = opened(disk)
    number = 0
    while not tier.counters.evicted_blocks:
        fill(tier, number)
        number += 1
    check_deleted(tier, disk, [key(n) for n in range(8)])


def check_deleted(tier: SsdTier, disk: CrashDisk, hashes: list[BlockHash]) -> None:
    done = [tier.delete([block_hash]) for block_hash in hashes]
    acknowledged = [h for h, future in zip(hashes, done, strict=True) if future.done()]
    disk.crash()
    assert not set(acknowledged) & set(opened(disk).hashes())


class UnsyncedUnlink:
    """A disk that takes a file's name away, and then cannot say whether that is for good."""

    def __init__(self) -> None:
        self.has_unlinked = False

    def __call__(self, call: str) -> OSError | None:
        self.has_unlinked |= call == "unlink"
        return OSError(errno.EIO, "EIO") if call == "sync" and self.has_unlinked else None


@pytest.mark.parametrize("seed", range(20))
def test_while_its_bucket_may_be_gone_or_come_back(seed: int) -> None:
    """What the tier says it holds survives a crash at that time, what was evicted may be put and deleted."""
    disk, clock = CrashDisk(random=Random(seed)), ManualClock()
    dropped: list[BlockHash] = []
    tier = SsdTier(
        disk.directory(), SETTINGS, on_dropped=lambda hashes, _: dropped.extend(hashes), clock=clock
    )
    disk.fault = UnsyncedUnlink()
    number = 0
    while tier.why_resting is None:
        fill(tier, number)
        number += 1
    held = set(tier.hashes())
    assert dropped
    assert not set(dropped) & held
    disk.fault = lambda _: None
    if seed % 2:
        clock.advance(SETTINGS.rest_s)
        deleted = tier.delete([dropped[0]])
        assert not deleted.done()
        write_out(tier)
        assert deleted.result(0)
        held = set(tier.hashes())
    disk.crash()
    found = set(opened(disk).hashes())
    assert held <= found
    assert not (seed % 2 and dropped[0] in found)


def test_while_only_its_tombstone_is_left_of_a_bucket() -> None:
    disk = CrashDisk()
    tier = opened(disk)
    fill(tier, *range(14))
    tier.delete([key(3)])  # beside the block, in bucket 1
    write_out(tier)
    fill(tier, *range(20, 30))
    tier.delete([key(5)])  # in bucket 2
    write_out(tier)
    fill(tier, *range(30, 36))  # and into bucket 3
    tier.delete([key(number) for number in range(20, 36)])
    write_out(tier)
    tier.check_invariants()
    assert sum(name.startswith("bucket") for name in disk.inodes) == 3
    disk.crash()
    assert set(opened(disk).hashes()) == {key(n) for n in range(14)} - {key(3), key(5)}


def test_through_any_number_of_reclaims() -> None:
    """Its record lies in a bucket that stays for its hot blocks; its tombstone travels."""
    disk, random = CrashDisk(), Random(4)
    tier = opened(disk)
    gone: set[BlockHash] = set()
    for number in range(600):
        fill(tier, number)
        if random.random() < 0.4:
            victim = key(random.randrange(max(0, number - 30), number + 1))
            tier.delete([victim])
            gone.add(victim)
        if number % 25 == 0:
            write_out(tier)
            disk.crash()
            tier = opened(disk)
            assert not gone & set(tier.hashes())
    tier.check_invariants()
    assert tier.num_blocks


def test_cleared_namespaces_stay_empty_and_later_puts_stay() -> None:
    disk = CrashDisk()
    tier = opened(disk)
    for number in range(6):
        tier.put(*make_block(number, namespace=b"ab"[number % 2 :][:1]))
    write_out(tier)
    tier.put(*make_block(6, namespace=b"a"))
    tier.clear(b"a")
    tier.put(*make_block(0, namespace=b"a"))
    write_out(tier)
    expected = {key(n) for n in (0, 1, 3, 5)}
    assert set(tier.hashes()) == expected
    disk.crash()
    tier = opened(disk)
    assert set(tier.hashes()) == expected
    tier.clear()
    write_out(tier)
    assert tier.used_bytes <= 2 * BUCKET
    tier.close()
    assert not opened(disk).hashes()


@pytest.mark.parametrize("is_compacted", [False, True])
def test_an_older_version_does_not_come_back_while_its_delete_waits(is_compacted: bool) -> None:
    """The bucket of the newer version is reclaimed while its tombstone is still in the queue."""
    disk = CrashDisk()
    tier = opened(disk)
    fill(tier, *range(16))
    tier.put(*make_block(0, version=2))
    write_out(tier)
    if is_compacted:
        fill(tier, 100)  # something to copy
    fill(tier, *range(20, 34 - is_compacted))
    fill(tier, 40)  # in the third bucket
    tier.delete([key(n) for n in range(20, 34)])
    write_out(tier)
    tier.delete([key(0)])
    reclaimer = tier._writer._reclaimer
    reclaimer.drop_empty()
    while tier.counters.reclaimed_buckets == 0 and is_compacted:
        assert reclaimer.step(BUCKET)
    disk.crash()
    held = opened(disk).get(key(0))
    assert held is None or held.version == 2


def test_bad_block_takes_no_newer_put_with_it() -> None:
    disk = CrashDisk()
    tier = opened(disk)
    fill(tier, 1)
    (inode,) = disk.inodes.values()
    inode.now[ALIGN // 4] ^= 1
    newer = tier.put(*make_block(1, version=2))
    with pytest.raises(BadSeal):
        tier.read(key(1), aligned_copy(bytes(4 * ALIGN)))
    write_out(tier)
    assert newer.result(0)
    disk.crash()
    held = opened(disk).get(key(1))
    assert held is not None
    assert held.version == 2


def test_earlier_version_of_bad_block_stays_away_when_its_compaction_is_given_up() -> None:
    disk = CrashDisk()
    tier = opened(disk)
    fill(tier, *range(16))
    tier.put(*make_block(0, version=2))  # in the second bucket
    fill(tier, *range(20, 35))
    fill(tier, 40)
    tier.delete([key(n) for n in range(20, 32)])
    tier.run_once()
    inode = next(inode for name, inode in disk.inodes.items() if name.startswith("bucket-00000002"))
    inode.now[ALIGN // 4] ^= 1
    reclaimer = tier._writer._reclaimer
    assert reclaimer.step(ALIGN)
    assert tier.counters.bad_blocks == 1
    reclaimer._give_up(reclaimer._work or pytest.fail("nothing was begun"))
    write_out(tier)
    while len(disk.inodes) > 3 and reclaimer.step(BUCKET):
        pass
    write_out(tier)
    disk.crash()
    assert opened(disk).get(key(0)) is None


def test_flush_waits_for_a_delete_that_is_being_written() -> None:
    queue = WriteQueue()
    queue.add_deletes([key(1)])
    batch, _ = queue.take(BUCKET, BUCKET)
    assert not queue.is_idle
    assert all(queue.written(append) for append in batch)
    assert queue.is_idle


def test_nothing_is_deleted_or_flushed_after_the_end() -> None:
    tier = opened(CrashDisk())
    fill(tier, 1)
    tier.close()
    with pytest.raises(Unavailable):
        tier.delete([key(1)])
    with pytest.raises(Unavailable):
        tier.clear()
    assert tier.get(key(1)) is not None
