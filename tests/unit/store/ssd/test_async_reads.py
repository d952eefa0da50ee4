"""Blocks read in pieces, hashed as they come: the same bytes, or an error, in whatever order pieces arrive."""

from pathlib import Path
from random import Random

import pytest
from unit.store.ssd.crash_disk import CrashDisk, aligned_copy
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.units import KIB, MIB
from daemons.store.segment.seal import BadSeal
from daemons.store.ssd import DiskDirectory, SsdSettings, SsdTier, files
from daemons.store.ssd.aligned import aligned_buffer, read_in_pieces, write_all
from daemons.store.ssd.async_reads import piece_reader
from daemons.store.ssd.files import ALIGN, BucketFile

SETTINGS = SsdSettings(capacity_bytes=256 * MIB, bucket_bytes=32 * MIB, read_workers=0)


@pytest.fixture(params=["kernel", "one after the other"])
def file(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> BucketFile:
    if request.param != "kernel":
        monkeypatch.setattr(files, "piece_reader", lambda: None)
    else:
        assert piece_reader() is not None
    return DiskDirectory(tmp_path).create("f")


def test_pieces_are_the_files_bytes_and_each_is_told_once(file: BucketFile) -> None:
    data = Random(1).randbytes(40 * ALIGN)
    write_all(file, [aligned_copy(data)], 0)
    for size in (ALIGN, 7 * ALIGN + 1, 30 * ALIGN, 38 * ALIGN + 4095):
        target = aligned_buffer(size + ALIGN)[:size]
        arrived: list[tuple[int, int]] = []

        def on_arrival(start: int, end: int, arrived: list[tuple[int, int]] = arrived) -> None:
            arrived.append((start, end))

        read_in_pieces(file, ALIGN, target, 8 * ALIGN, on_arrival)
        assert bytes(target) == data[ALIGN : ALIGN + size]
        ends = [0, *(end for _, end in sorted(arrived))]
        assert [start for start, _ in sorted(arrived)] == ends[:-1]
        assert ends[-1] == size
    file.close()


def test_a_file_that_is_too_short_is_an_error_and_no_read_is_left_behind(file: BucketFile) -> None:
    write_all(file, [aligned_copy(bytes(20 * ALIGN))], 0)
    target = aligned_buffer(32 * ALIGN)
    for _ in range(3):
        with pytest.raises(OSError, match="cut short"):
            read_in_pieces(file, 0, target, 8 * ALIGN, lambda *_: None)
    read_in_pieces(file, 0, target[: 20 * ALIGN], 8 * ALIGN, lambda *_: None)
    file.close()


def test_what_a_listener_raises_comes_after_the_last_read(file: BucketFile) -> None:
    write_all(file, [aligned_copy(bytes(16 * ALIGN))], 0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            read_in_pieces(file, 0, aligned_buffer(16 * ALIGN), 2 * ALIGN, lambda *_: 1 // 0)
    file.close()


@pytest.mark.parametrize("layer_bytes", [700 * KIB, 600_002])
@pytest.mark.parametrize("on", ["disk", "model"])
def test_large_blocks_come_back_and_a_flipped_bit_is_found(
    on: str, layer_bytes: int, tmp_path: Path
) -> None:
    disk = CrashDisk(random=Random(4))
    tier = SsdTier(DiskDirectory(tmp_path) if on == "disk" else disk.directory(), SETTINGS)
    block, stored = make_block(2, layer_bytes=layer_bytes, num_layers=7)
    for number in range(3):
        put = tier.put(*make_block(number, layer_bytes=layer_bytes, num_layers=7))
        tier.run_once()
        assert put.result(0)
    for shift in (0, 100):
        target = aligned_copy(bytes(block.stored_bytes), shift)
        tier.read(key(2), target)
        assert bytes(target) == bytes(stored)
    at = 2 * (len(stored) // ALIGN + 2) * ALIGN + len(stored) // 2
    if on == "disk":
        (path,) = tmp_path.glob("bucket*")
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
    else:
        next(iter(disk.inodes.values())).now[at] ^= 1
    with pytest.raises(BadSeal):
        tier.read(key(2), aligned_copy(bytes(block.stored_bytes)))
    tier.close()
