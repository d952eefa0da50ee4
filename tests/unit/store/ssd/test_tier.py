"""A tier on the real filesystem, and on a disk that fails."""

import errno
import logging
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from unit.store.ssd.crash_disk import CrashDisk, aligned_copy
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.clock import ManualClock
from daemons.core.errors import (
    ConfigError,
    Conflict,
    Exhausted,
    McError,
    NotFound,
    Rejected,
    Unavailable,
)
from daemons.core.units import KIB, MIB
from daemons.store.segment.seal import BadSeal
from daemons.store.ssd import DiskDirectory, SsdSettings, SsdTier

WAIT_S = 20.0
SMALL = SsdSettings(
    capacity_bytes=512 * KIB, bucket_bytes=128 * KIB, batch_bytes=64 * KIB, read_workers=0
)


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> DiskDirectory:
    made = DiskDirectory(tmp_path / "ssd", wants_direct=request.param)
    if request.param and not made.is_direct:
        made.close()
        pytest.skip("the filesystem of the temporary directory has no O_DIRECT")
    return made


def started(directory: DiskDirectory, **changes: int) -> SsdTier:
    values = {"capacity_bytes": 64 * MIB, "bucket_bytes": 4 * MIB, **changes}
    tier = SsdTier(directory, SsdSettings(**values))
    tier.start()
    return tier


@pytest.mark.parametrize("layer_bytes", [100, 4096, 16 * KIB, 70_002])
@pytest.mark.parametrize("shift", [0, 8, 512])
def test_blocks_and_layers_come_back_into_memory_of_any_alignment(
    directory: DiskDirectory, layer_bytes: int, shift: int
) -> None:
    tier = started(directory)
    block, stored = make_block(1, layer_bytes=layer_bytes, num_layers=5)
    assert tier.put(block, aligned_copy(bytes(stored), shift)).result(WAIT_S)
    whole = aligned_copy(bytes(block.stored_bytes), shift)
    assert tier.read(key(1), whole) == block
    assert bytes(whole) == bytes(stored)
    payload = aligned_copy(bytes(block.length), shift)
    tier.submit_read(key(1), payload).result(WAIT_S)
    assert bytes(payload) == bytes(stored[: block.length])
    for first, last in [(0, 1), (1, 3), (4, 5), (0, 5)]:
        part = aligned_copy(bytes((last - first) * layer_bytes), shift)
        tier.read(key(1), part, (first, last))
        assert bytes(part) == bytes(stored[first * layer_bytes : last * layer_bytes])
    tier.close()


def test_everything_is_there_after_a_restart(directory: DiskDirectory) -> None:
    tier = started(directory)
    puts = [tier.put(*make_block(number, layer_bytes=20_000)) for number in range(50)]
    assert all(put.result(WAIT_S) for put in puts)
    assert tier.counters.commits < 50
    tier.delete([key(3), key(4)]).result(WAIT_S)
    tier.close()
    again = SsdTier(DiskDirectory(directory.path), tier.settings)
    assert again.counters.recovered_blocks == 48
    for number in set(range(50)) - {3, 4}:
        block, stored = make_block(number, layer_bytes=20_000)
        target = aligned_copy(bytes(block.stored_bytes))
        again.read(key(number), target)
        assert bytes(target) == bytes(stored)
    with pytest.raises(NotFound):
        again.read(key(3), target)
    again.close()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    first = DiskDirectory(tmp_path)
    with pytest.raises(
        ConfigError, match="held by this process; give each node a directory of its own"
    ):
        DiskDirectory(tmp_path)
    first.close()
    DiskDirectory(tmp_path).close()


def test_without_o_direct_it_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    DiskDirectory(tmp_path, wants_direct=False).close()
    assert "o_direct=no (switched off)" in caplog.text


def test_the_same_bytes_again_are_stored_others_conflict() -> None:
    tier = SsdTier(CrashDisk().directory(), SMALL)
    block, stored = make_block(1)
    first = tier.put(block, stored)
    assert tier.put(block, stored) is first
    tier.run_once()
    assert tier.put(block, stored).result(0)
    other, bytes_ = make_block(1, layer_bytes=600)
    with pytest.raises(Conflict):
        tier.put(other, bytes_)
    newer = tier.put(*make_block(1, version=2))
    tier.run_once()
    assert newer.result(0)
    with pytest.raises(Conflict, match="newer"):
        tier.put(block, stored)
    tier.close()


def test_a_put_that_is_deleted_before_it_is_stored_says_so() -> None:
    disk = CrashDisk()
    tier = SsdTier(disk.directory(), SMALL)
    put = tier.put(*make_block(1))
    gone = tier.delete([key(1)])
    tier.run_once()
    assert (put.result(0), gone.result(0)) == (False, True)
    disk.crash()
    assert not SsdTier(disk.directory(), SMALL).hashes()


def test_a_slow_disk_refuses_instead_of_queueing_without_end() -> None:
    settings = SsdSettings(
        capacity_bytes=512 * KIB, bucket_bytes=128 * KIB, max_queued_bytes=64 * KIB, read_workers=0
    )
    tier = SsdTier(CrashDisk().directory(), settings)
    for number in range(5):
        tier.put(*make_block(number, layer_bytes=5000))
    with pytest.raises(
        Exhausted, match=r"60.0 KiB wait for the SSD, the limit is 64.0 KiB"
    ) as full:
        tier.put(*make_block(5, layer_bytes=5000))
    assert full.value.retry_after_ms
    with pytest.raises(Rejected, match="does not fit a bucket"):
        tier.put(*make_block(99, layer_bytes=100_000))
    tier.close()


def test_a_full_disk_costs_puts_not_the_index() -> None:
    disk = CrashDisk(capacity_bytes=400 * KIB)
    clock = ManualClock()
    settings = SsdSettings(capacity_bytes=768 * KIB, bucket_bytes=64 * KIB, read_workers=0)
    tier = SsdTier(disk.directory(), settings, clock=clock)
    for number in range(60):
        assert put(tier, clock, number) is None
    # Less than the configured bytes exist, so the oldest went; the newest are all there.
    assert 15 < tier.num_blocks < 40
    assert {key(number) for number in range(50, 60)} <= set(tier.hashes())
    # Others fill it, and whatever is given up for them.
    disk.capacity_bytes = 0
    failed = [put(tier, clock, number) for number in range(100, 110)]
    assert isinstance(failed[-1], Exhausted)
    assert all(error is None or "filesystem is full" in str(error) for error in failed)
    assert tier.num_blocks >= 5
    assert tier.why_resting is not None
    tier.read(tier.hashes()[0], aligned_copy(bytes(20_000)))
    disk.capacity_bytes = 400 * KIB
    assert put(tier, clock, 200) is None
    tier.check_invariants()
    tier.close()


def put(tier: SsdTier, clock: ManualClock, number: int) -> McError | None:
    """The error, if any; after one the disk has had its rest."""
    if tier.why_resting is not None:
        clock.advance(tier.settings.rest_s)
    try:
        future = tier.put(*make_block(number, layer_bytes=5000))
        while tier.run_once():
            pass
        future.result(0)
    except McError as error:
        return error
    return None


@pytest.mark.parametrize("call", ["write", "sync", "reserve", "create", "truncate"])
def test_after_an_io_error_it_rests_and_goes_on(call: str) -> None:
    disk = CrashDisk()
    clock = ManualClock()
    tier = SsdTier(disk.directory(), SMALL, clock=clock)
    numbers = iter(range(1000))
    for _ in range(10):
        assert put(tier, clock, next(numbers)) is None
    deleted = tier.delete([key(2)])
    tier.run_once()
    assert deleted.result(0)
    disk.fault = lambda name: OSError(errno.EIO, "Input/output error") if name == call else None
    errors = [put(tier, clock, next(numbers)) for _ in range(20)]
    failed = next(error for error in errors if error is not None)
    assert isinstance(failed, Unavailable)
    assert "Input/output error" in str(failed)
    lost = tier.delete([key(1)])
    tier.run_once()
    disk.fault = lambda _: None
    clock.advance(3600)
    assert put(tier, clock, 5000) is None
    if lost.exception(0) is not None:
        tier.flush(0)
    block, stored = make_block(0, layer_bytes=5000)
    target = aligned_copy(bytes(block.stored_bytes))
    tier.read(key(0), target)
    assert bytes(target) == bytes(stored)
    tier.check_invariants()
    disk.crash()
    again = SsdTier(disk.directory(), SMALL)
    assert {key(1), key(2)}.isdisjoint(again.hashes())
    assert {key(0), key(3), key(5000)} <= set(again.hashes())
    again.close()


def test_one_bad_sector_costs_one_read_a_dead_disk_all_of_them() -> None:
    disk = CrashDisk()
    clock = ManualClock()
    tier = SsdTier(disk.directory(), SMALL, clock=clock)
    for number in range(3):
        put(tier, clock, number)
    disk.fault = lambda name: OSError(errno.EIO, "EIO") if name == "read" else None
    target = aligned_copy(bytes(make_block(1, layer_bytes=5000)[0].stored_bytes))
    with pytest.raises(Unavailable, match="could not read"):
        tier.read(key(1), target)
    assert tier.why_resting is None
    num_reads = 0
    while tier.why_resting is None:
        with pytest.raises(Unavailable):
            tier.read(key(1), target)
        num_reads += 1
    assert num_reads < 10
    disk.fault = lambda _: pytest.fail("a resting disk is left alone")
    with pytest.raises(Unavailable) as refused:
        tier.read(key(1), target)
    assert refused.value.retry_after_ms
    disk.fault = lambda _: None
    clock.advance(SMALL.rest_s)
    tier.read(key(1), target)
    assert tier.num_blocks == 3
    tier.close()


def test_closing_answers_everybody() -> None:
    disk = CrashDisk()
    tier = SsdTier(disk.directory(), SMALL)
    read = tier.submit_read(key(1), aligned_copy(bytes(100)))
    put_ = tier.put(*make_block(1))
    disk.fault = lambda name: OSError(errno.EIO, "EIO") if name == "reserve" else None
    tier.close()
    assert isinstance(read.exception(0), Unavailable)
    assert isinstance(put_.exception(0), Unavailable)
    with pytest.raises(Unavailable):
        tier.put(*make_block(2))


@pytest.fixture
def tiny_mount(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 2 MiB."""
    mount = tmp_path / "tiny"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not possible here: {done.stderr.strip()}")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_a_real_filesystem_that_is_too_small_is_used_as_far_as_it_goes(tiny_mount: Path) -> None:
    settings = SsdSettings(capacity_bytes=16 * MIB, bucket_bytes=512 * KIB, rest_s=0.01)
    tier = SsdTier(DiskDirectory(tiny_mount), settings)
    tier.start()
    for number in range(300):
        tier.put(*make_block(number, layer_bytes=20_000)).result(WAIT_S)
    assert 10 <= tier.num_blocks <= 2 * MIB // 40_000
    tier.check_invariants()
    tier.close()
    again = SsdTier(DiskDirectory(tiny_mount), settings)
    block, stored = make_block(299, layer_bytes=20_000)
    target = aligned_copy(bytes(block.stored_bytes))
    again.read(key(299), target)
    assert bytes(target) == bytes(stored)
    again.close()


class Readers:
    """Threads that read at random and check every byte."""

    def __init__(self, tier: SsdTier, num_keys: int) -> None:
        self.tier = tier
        self.num_keys = num_keys
        self.problems: list[str] = []
        self.num_read = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(4)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: int) -> None:
        random = Random(seed)
        target = aligned_copy(bytes(40_000))
        while not self._stop.is_set():
            try:
                self._read(random.randrange(self.num_keys), target)
            except NotFound:
                continue
            except BadSeal as error:
                self.problems.append(str(error))

    def _read(self, number: int, target: memoryview) -> None:
        block = self.tier.read(key(number), target)
        expected = make_block(number, version=block.version, layer_bytes=15_000)[1]
        if bytes(target[: block.stored_bytes]) != bytes(expected):
            self.problems.append(f"wrong bytes of {number}")
        self.num_read += 1


def test_reads_stay_right_while_buckets_are_reclaimed(directory: DiskDirectory) -> None:
    """A writer replaces, deletes and adds beside them, so that every bucket goes several times."""
    tier = started(directory, capacity_bytes=4 * MIB, bucket_bytes=MIB, batch_bytes=256 * KIB)
    readers = Readers(tier, 60)
    random = Random(9)
    for version in range(1, 9):
        futures = [
            tier.put(*make_block(number, version=version, layer_bytes=15_000))
            for number in range(60)
        ]
        futures.append(tier.delete([key(random.randrange(60)) for _ in range(5)]))
        for future in futures:
            future.result(WAIT_S)
    readers.close()
    assert readers.problems == []
    assert readers.num_read > 50
    assert tier.counters.reclaimed_buckets > 5
    assert tier.used_bytes <= 4 * MIB
    tier.check_invariants()
    tier.close()


def test_bug_in_the_writer_is_told_to_whoever_waits(caplog: pytest.LogCaptureFixture) -> None:
    disk = CrashDisk()
    tier = SsdTier(disk.directory(), SMALL)

    def bug(_: str) -> OSError | None:
        raise RuntimeError("a bug")

    disk.fault = bug
    put = tier.put(*make_block(1))
    tier.start()
    assert isinstance(put.exception(WAIT_S), Unavailable)
    assert tier._thread is not None
    tier._thread.join(WAIT_S)
    assert "writer ended of=the SSD" in caplog.text
    with pytest.raises(Unavailable):
        tier.put(*make_block(2))
    disk.fault = lambda _: None
    tier.close()


def test_bucket_that_could_not_be_made_shares_its_number_with_none() -> None:
    disk, clock = CrashDisk(), ManualClock()
    tier = SsdTier(disk.directory(), SMALL, clock=clock)
    is_failing = ("reserve", "unlink")
    disk.fault = lambda name: OSError(errno.EIO, "EIO") if name in is_failing else None
    failed = tier.put(*make_block(1))
    tier.run_once()
    assert failed.exception(0) is not None
    disk.fault = lambda _: None
    clock.advance(SMALL.rest_s)
    put = tier.put(*make_block(1))
    tier.run_once()
    assert put.result(0)
    tier.close()
    again = SsdTier(disk.directory(), SMALL)
    assert len(disk.inodes) == len(again._buckets.by_id) == 2
    assert again.get(key(1)) is not None
    again.close()


def test_what_was_removed_before_a_start_does_not_come_back() -> None:
    disk = CrashDisk()
    tier = SsdTier(disk.directory(), SMALL)
    tier.put(*make_block(1))
    tier.run_once()
    tier.close()
    (name,) = disk.inodes
    disk.directory().unlink(name)  # and the name was not synced
    assert disk.names_log
    SsdTier(disk.directory(), SMALL).close()
    assert not disk.names_log, "a crash would bring it back"
