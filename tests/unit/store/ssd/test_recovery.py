"""What is found again when files were torn, cut, flipped or are not ours."""

from collections.abc import Sequence
from random import Random

import pytest
from unit.store.ssd.crash_disk import CrashDisk, Crashed, CrashFile, Inode, aligned_copy
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.errors import NotFound
from daemons.core.ids import BlockHash
from daemons.core.units import KIB
from daemons.store.lower import BlockRecord
from daemons.store.segment.seal import BadSeal
from daemons.store.ssd import SsdSettings, SsdTier
from daemons.store.ssd.buckets import Bucket
from daemons.store.ssd.files import ALIGN
from daemons.store.ssd.record import block_layout
from daemons.store.ssd.recovery import scan_bucket

SETTINGS = SsdSettings(capacity_bytes=1024 * KIB, bucket_bytes=128 * KIB, read_workers=0)


def opened(disk: CrashDisk) -> SsdTier:
    return SsdTier(disk.directory(), SETTINGS)


def written(*numbers: int, layer_bytes: int = 512) -> tuple[CrashDisk, Inode, int]:
    """A disk with these blocks, closed without a footer; its one bucket and the bucket's secret."""
    disk = CrashDisk()
    tier = opened(disk)
    for number in numbers:
        tier.put(*make_block(number, layer_bytes=layer_bytes))
        tier.run_once()
    tier.close()
    ((name, inode),) = disk.inodes.items()
    del inode.now[
        sum(block_layout(make_block(n, layer_bytes=layer_bytes)[0])[1] for n in numbers) :
    ]
    return disk, inode, int(name[16:32], 16)


def scan(data: bytes, secret: int, *, is_last: bool) -> list[BlockHash]:
    file = CrashFile(CrashDisk(), Inode(now=bytearray(data)))
    bucket = Bucket(1, secret, file, "b", len(data) // ALIGN * ALIGN)
    found = scan_bucket(bucket, is_direct=True, is_last=is_last)
    return [record.meta.hash for _, record in found.records if isinstance(record, BlockRecord)]


def test_a_tail_torn_at_any_byte_costs_only_the_torn_block() -> None:
    _, inode, secret = written(1, 2)
    first_end = block_layout(make_block(1)[0])[1]
    second_end = first_end + block_layout(make_block(2)[0])[1]
    assert len(inode.now) == second_end
    header, record = block_layout(make_block(2)[0])
    last_byte = first_end + header + make_block(2)[0].stored_bytes
    for cut in range(first_end, second_end):
        data = bytes(inode.now[:cut]) + bytes(second_end - cut)
        assert scan(data, secret, is_last=True) == [key(1)] + [key(2)] * (cut >= last_byte), cut
    assert record == ALIGN


def test_a_file_cut_at_any_page_keeps_the_blocks_before() -> None:
    for num_bytes in range(0, 6 * 3 * ALIGN, ALIGN // 2):
        disk, inode, _ = written(0, 1, 2, 3, layer_bytes=4000)
        ends = [(n + 1) * block_layout(make_block(0, layer_bytes=4000)[0])[1] for n in range(4)]
        del inode.now[num_bytes:]
        tier = opened(disk)
        assert sorted(tier.hashes()) == sorted(key(n) for n in range(4) if ends[n] <= num_bytes)
        tier.close()


@pytest.mark.parametrize("layer_bytes", [512, 16 * KIB])
def test_a_flipped_bit_is_never_served(layer_bytes: int) -> None:
    random = Random(5)
    block, stored = make_block(2, layer_bytes=layer_bytes)
    size = block_layout(block)[1]
    for _ in range(150):
        disk, inode, _ = written(1, 2, 3, layer_bytes=layer_bytes)
        inode.now[random.randrange(size, 2 * size)] ^= 1 << random.randrange(8)
        dropped: list[BlockHash] = []

        def on_dropped(
            hashes: Sequence[BlockHash], why: str, dropped: list[BlockHash] = dropped
        ) -> None:
            assert why == "bad"
            dropped.extend(hashes)

        tier = SsdTier(disk.directory(), SETTINGS, on_dropped=on_dropped)
        target = aligned_copy(bytes(block.stored_bytes))
        try:
            tier.read(key(2), target)
        except NotFound:
            assert tier.counters.damaged_bytes == ALIGN or layer_bytes > ALIGN
        except BadSeal:
            assert dropped == [key(2)]
            tier.close()
            tier = opened(disk)
            assert tier.get(key(2)) is None
        else:  # in the padding
            assert bytes(target) == bytes(stored)
        assert tier.get(key(1)) is not None
        assert tier.get(key(3)) is not None
        tier.close()


def test_a_damaged_bucket_is_counted_and_the_rest_found() -> None:
    disk, inode, _ = written(1, 2, 3)
    inode.now[ALIGN : ALIGN + 64] = bytes(64)
    tier = opened(disk)
    assert sorted(tier.hashes()) == sorted([key(1), key(3)])
    assert tier.counters.damaged_bytes == ALIGN
    tier.close()


def test_bytes_of_another_bucket_are_not_taken_for_ours() -> None:
    _, other, _ = written(7, 8)
    disk, inode, _ = written(1, 2)
    inode.now[ALIGN:] = other.now[ALIGN : len(inode.now)]
    tier = opened(disk)
    assert tier.hashes() == [key(1)]
    assert tier.counters.torn_bytes == ALIGN
    tier.close()


def test_files_that_are_not_ours_are_left_alone() -> None:
    disk, _, _ = written(1)
    disk.inodes["README"] = Inode(now=bytearray(b"hello"))
    disk.inodes["bucket-000000ff-nothex.log"] = Inode()
    tier = opened(disk)
    assert tier.hashes() == [key(1)]
    assert not tier.clear().cancel()
    tier.close()
    assert {"README", "bucket-000000ff-nothex.log"} <= disk.inodes.keys()


def test_an_unreadable_bucket_costs_its_own_blocks_only() -> None:
    disk, first, _ = written(1)
    tier = opened(disk)
    tier.put(*make_block(2))
    tier.close()
    real = CrashFile.preadv

    def broken(self: CrashFile, buffers: Sequence[memoryview], offset: int) -> int:
        if self.inode is first:
            raise OSError(5, "Input/output error")
        return real(self, buffers, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CrashFile, "preadv", broken)
        tier = opened(disk)
    assert tier.hashes() == [key(2)]
    tier.close()


def test_what_was_not_synced_is_found_whole_or_not_at_all() -> None:
    """A batch of blocks and deletes, the plug pulled before or in its sync, the disk keeping any of its pages."""
    outcomes = set()
    for seed in range(150):
        disk = CrashDisk(random=Random(seed))
        tier = opened(disk)
        for number in range(3):
            tier.put(*make_block(number, layer_bytes=3000))
        tier.delete([key(0)])
        tier.run_once()
        for number in range(3, 6):
            tier.put(*make_block(number, layer_bytes=3000))
        tier.delete([key(1)])
        disk.ops_left = seed % 2
        with pytest.raises(Crashed):
            tier.run_once()
        disk.crash()
        for _ in range(2):  # what the first start found, a second crash does not take away
            tier = opened(disk)
            found = frozenset(number for number in range(6) if tier.get(key(number)))
            for number in found:
                block, stored = make_block(number, layer_bytes=3000)
                target = aligned_copy(bytes(block.stored_bytes))
                tier.read(key(number), target)
                assert bytes(target) == bytes(stored)
            assert 0 not in found
            assert 2 in found
            disk.crash()
            outcomes.add(found)
    assert len(outcomes) > 10


def test_a_record_without_its_body_stays_away_once_its_bucket_is_not_the_last() -> None:
    """Erased and synced by the start that found it: later ones do not read bodies of earlier buckets."""
    for seed in range(20):
        disk = CrashDisk(random=Random(seed))
        tier = opened(disk)
        for number in (1, 2, 3):
            tier.put(*make_block(number, layer_bytes=4000))
        tier.run_once()
        (inode,) = disk.inodes.values()
        size = block_layout(make_block(2, layer_bytes=4000)[0])[1]
        inode.now[size + ALIGN : 2 * size] = bytes(size - ALIGN)
        inode.durable = bytearray(inode.now)
        disk.crash()
        tier = opened(disk)
        assert set(tier.hashes()) == {key(1), key(3)}
        tier.put(*make_block(4))
        tier.run_once()
        disk.crash()
        assert set(opened(disk).hashes()) == {key(1), key(3), key(4)}
