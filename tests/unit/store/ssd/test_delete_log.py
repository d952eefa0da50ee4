"""No loss of one file brings back what was deleted or replaced."""

from collections.abc import Callable
from random import Random

import pytest
from unit.store.ssd.crash_disk import CrashDisk, CrashFile, Inode
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.clock import ManualClock
from daemons.store.ssd import SsdSettings, SsdTier
from daemons.store.ssd.delete_log import DeleteLog, merged
from daemons.store.ssd.files import ALIGN
from daemons.store.ssd.record import RecordKind, TombstoneRecord

BUCKET = 17 * ALIGN
SETTINGS = SsdSettings(
    capacity_bytes=12 * BUCKET, bucket_bytes=BUCKET, batch_bytes=4 * ALIGN, read_workers=0
)


def opened(disk: CrashDisk) -> SsdTier:
    return SsdTier(disk.directory(), SETTINGS, clock=ManualClock())


def write_out(tier: SsdTier) -> None:
    while tier.run_once():
        pass


def lived_in(*, is_closed: bool) -> CrashDisk:
    """Blocks 0..39 over three buckets: 0..9 deleted, 10..14 replaced, of namespace `b` all cleared."""
    disk = CrashDisk()
    tier = opened(disk)
    for number in range(40):
        tier.put(*make_block(number, namespace=b"b" if number >= 35 else b"a"))
        write_out(tier)
    tier.delete([key(number) for number in range(10)])
    write_out(tier)
    tier.clear(b"b")
    for number in range(10, 15):
        tier.put(*make_block(number, version=2, namespace=b"a"))
    write_out(tier)
    if is_closed:
        tier.close()
    disk.crash()
    return disk


def unreadable(disk: CrashDisk, name: str) -> None:
    real = CrashFile.preadv
    lost = disk.inodes[name]

    def broken(self: CrashFile, buffers: list[memoryview], offset: int) -> int:
        if self.inode is lost:
            raise OSError(5, "Input/output error")
        return real(self, buffers, offset)

    CrashFile.preadv = broken  # type: ignore[method-assign,assignment]


def gone(disk: CrashDisk, name: str) -> None:
    del disk.inodes[name], disk.durable_inodes[name]


def zeroed(disk: CrashDisk, name: str) -> None:
    disk.inodes[name].now[:] = bytes(len(disk.inodes[name].now))


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("lose", [unreadable, gone, zeroed])
def test_nothing_comes_back_when_one_file_is_lost(
    lose: Callable[[CrashDisk, str], None], is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(lived_in(is_closed=is_closed).inodes)
    assert [name[:6] for name in names] == ["bucket"] * (len(names) - 1) + ["delete"]
    assert len(names) >= 4
    for at in range(len(names)):
        disk = lived_in(is_closed=is_closed)
        with monkeypatch.context() as patch:
            patch.setattr(CrashFile, "preadv", CrashFile.preadv)
            lose(disk, sorted(disk.inodes)[at])
            tier = opened(disk)
        found = {number: tier.get(key(number)) for number in range(40)}
        assert not [number for number in (*range(10), *range(35, 40)) if found[number]]
        assert all(block is None or block.version == 2 for block in list(found.values())[10:15])
        assert sum(block is not None for block in found.values()) >= 25 - 16
        # And what was in two places is so again, or in the one that is left.
        disk.crash()
        assert not {key(number) for number in range(10)} & set(opened(disk).hashes())


def test_a_delete_of_what_an_unreadable_bucket_may_hold_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = lived_in(is_closed=True)
    with monkeypatch.context() as patch:
        patch.setattr(CrashFile, "preadv", CrashFile.preadv)
        unreadable(disk, sorted(disk.inodes)[1])
        tier = opened(disk)
        assert tier.get(key(17)) is None
        deleted = tier.delete([key(17)])
        assert not deleted.done()
        tier._writer._log.open_head()
        batch = tier._writer._take()
        tier._writer._write(batch)  # not yet so far that the bucket is taken away
        assert deleted.result(0)
        disk.crash()
    tier = opened(disk)
    assert tier.get(key(17)) is None
    assert tier.get(key(18)) is not None


def test_what_is_put_after_every_bucket_is_gone_is_not_held_off() -> None:
    disk = CrashDisk()
    tier = opened(disk)
    for number in range(6):
        tier.put(*make_block(number))
    tier.delete([key(1)])
    write_out(tier)
    tier.close()
    for name in list(disk.inodes):
        if name.startswith("bucket"):
            gone(disk, name)
    tier = opened(disk)
    tier.put(*make_block(1))
    write_out(tier)
    disk.crash()
    assert opened(disk).hashes() == [key(1)]


def test_it_stays_small_and_forgets_what_no_bucket_holds() -> None:
    disk, random = CrashDisk(), Random(5)
    tier = opened(disk)
    for number in range(600):
        tier.put(*make_block(number))
        tier.run_once()
        if number % 3 == 0:
            tier.delete([key(random.randrange(max(0, number - 40), number + 1))])
            tier.run_once()
        assert tier.used_bytes <= SETTINGS.capacity_bytes
        assert tier._deletes.file_bytes <= SETTINGS.delete_log_bytes // 2
    tier.clear()
    write_out(tier)
    tier.close()
    assert opened(disk).num_blocks == 0
    assert sum(name.startswith("deletes") for name in disk.inodes) == 1


def test_a_damaged_page_costs_what_is_on_it_only() -> None:
    disk = CrashDisk()
    deletes = DeleteLog(disk.directory(), Random(1).getrandbits, 64 * ALIGN)
    deletes.settle([], 1)
    written = [TombstoneRecord(RecordKind.DELETES, 10 + n, (key(n),)) for n in range(5)]
    for tombstone in written:
        deletes.append([tombstone], 1)
    (inode,) = disk.inodes.values()
    inode.now[2 * ALIGN + 20] ^= 1
    found = DeleteLog(disk.directory(), Random(2).getrandbits, 64 * ALIGN).found
    assert found == [*written[:2], *written[3:]]


def test_what_a_failed_write_left_is_no_obstacle() -> None:
    disk = CrashDisk()
    deletes = DeleteLog(disk.directory(), Random(1).getrandbits, 64 * ALIGN)
    deletes.settle([], 1)
    deletes.append([TombstoneRecord(RecordKind.DELETES, 10, (key(1),))], 1)
    for call in ("write", "sync", "create"):
        disk.fault = lambda name, call=call: OSError(5, "EIO") if name == call else None  # type: ignore[misc]
        with pytest.raises(OSError, match="EIO"):
            deletes.append([TombstoneRecord(RecordKind.DELETES, 11, (key(2),))], 1)
    disk.fault = lambda _: None
    deletes.append([TombstoneRecord(RecordKind.DELETES, 12, (key(3),))], 1)
    deletes.append([TombstoneRecord(RecordKind.DELETES, 13, (key(4),))], 1)
    deletes.close()
    disk.crash()
    again = DeleteLog(disk.directory(), Random(2).getrandbits, 64 * ALIGN)
    keys = {block_hash for tombstone in again.found for block_hash in tombstone.keys}
    assert {key(1), key(3), key(4)} <= keys
    again.settle([], 1)
    assert len(disk.inodes) == 1


def test_merged_keeps_the_highest_of_each_and_nothing_that_is_not_needed() -> None:
    a, b, c = key(1), key(2), key(3)
    deletes, clear = RecordKind.DELETES, RecordKind.CLEAR
    tombstones = [
        TombstoneRecord(deletes, 7, (a, b)),
        TombstoneRecord(deletes, 9, (b,)),
        TombstoneRecord(deletes, 3, (c,)),
        TombstoneRecord(clear, 5, (), b"ns"),
        TombstoneRecord(clear, 8, (), b"ns"),
        TombstoneRecord(RecordKind.CLEAR_ALL, 2),
    ]
    expected = [
        TombstoneRecord(clear, 8, (), b"ns"),
        TombstoneRecord(deletes, 7, (a,)),
        TombstoneRecord(deletes, 9, (b,)),
    ]
    assert merged(tombstones, 3) == expected
    assert merged(reversed([*tombstones, *expected]), 3) == expected


def test_empty_files_are_no_logs() -> None:
    disk = CrashDisk()
    disk.inodes["deletes-00000001-0000000000000001.log"] = Inode(now=bytearray(100))
    tier = opened(disk)
    tier.put(*make_block(1))
    tier.delete([key(1)])
    write_out(tier)
    tier.close()
    assert opened(disk).num_blocks == 0
