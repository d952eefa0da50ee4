import fcntl
import os
import platform
import resource
from pathlib import Path

import numpy as np
import pytest
from kit.full_disk import room_for

from daemons.core.errors import ConfigError, Exhausted, TransferError
from daemons.transfer import memory as memory_module
from daemons.transfer.memory import (
    adopt_shared,
    allocate_shared,
    available_bytes,
    host_id,
    reopen_shared,
)
from daemons.transfer.regions import RegionTable


def test_anonymous_shared_memory_cannot_shrink() -> None:
    memory = allocate_shared("test", 8192)
    assert fcntl.fcntl(memory.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fd, 4096)
    memory.close()


def test_populated_memory_is_mapped_step_by_step_and_keeps_its_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_module, "_ALLOCATE_STEP", 24 * 4096)
    memory = allocate_shared("test", 64 * 4096)
    memory.array[5 * 4096] = 7
    told: list[tuple[int, int]] = []
    memory.populate(lambda done, total: told.append((done // 4096, total // 4096)))
    assert (memory.array[5 * 4096], memory.array.sum()) == (7, 7)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for page in range(64):
        memory.array[page * 4096] = 1
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    memory.close()
    if tuple(map(int, platform.release().split(".")[:2])) >= (5, 14):
        assert faults < 32
        assert told == [(24, 64), (48, 64), (64, 64)]


def test_file_is_fully_allocated_and_goes_with_close(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "segment"
    progress: list[tuple[int, int]] = []
    memory = allocate_shared(
        "test", 1 << 20, path, lambda done, total: progress.append((done, total))
    )
    status = path.stat()
    assert status.st_size == 1 << 20 <= status.st_blocks * 512
    assert progress == [(1 << 20, 1 << 20)]
    memory.close()
    assert not path.exists()


def test_file_of_a_dead_process_is_replaced_and_of_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"left behind")
    memory = allocate_shared("test", 4096, path)
    assert not memory.array.any()
    with pytest.raises(
        ConfigError, match="held by this process; give each node its own segment path"
    ):
        allocate_shared("test", 4096, path)
    memory.close()


def test_kept_file_is_opened_again_by_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    assert reopen_shared(path, 8192) is None
    memory = allocate_shared("test", 8192, path)
    memory.is_kept = True
    memory.array[:] = 3
    with pytest.raises(
        ConfigError, match="held by this process; give each node its own segment path"
    ):
        reopen_shared(path, 8192)
    shown = memory.array
    memory.close()
    again = reopen_shared(path, 8192)
    assert again is not None
    assert (again.array == 3).all()
    again.array[0] = 4
    assert shown[0] == 4
    again.close()
    assert not path.exists()


def test_file_of_another_size_or_kind_is_not_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(4096))
    with pytest.raises(TransferError, match=r"it has 4.0 KiB and is now to have 8.0 KiB"):
        reopen_shared(path, 8192)
    with pytest.raises(TransferError, match="cannot be opened"):
        reopen_shared(tmp_path, 8192)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(TransferError, match="cannot be opened"):
        reopen_shared(tmp_path / "link", 4096)


def test_holes_of_a_kept_file_are_filled_before_it_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    with path.open("wb") as file:
        file.truncate(1 << 20)
    memory = reopen_shared(path, 1 << 20)
    assert memory is not None
    assert path.stat().st_blocks * 512 >= 1 << 20
    memory.close()


@pytest.mark.parametrize("seal", [None, fcntl.F_SEAL_WRITE, 0x10])
def test_kept_memory_that_cannot_be_written_any_more_is_refused_and_closed(
    seal: int | None,
) -> None:
    fd = os.memfd_create("kept", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 8192)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | (seal or 0))
    if seal is None:
        read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        os.close(fd)
        fd = read_only
    with pytest.raises(TransferError, match="cannot be mapped to be written"):
        adopt_shared(fd, 8192)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_limit_of_this_process_is_told_as_a_full_filesystem_is(tmp_path: Path) -> None:
    with room_for(1 << 20), pytest.raises(Exhausted, match=r"only 0 B of 2.0 MiB .*File too large"):
        allocate_shared("test", 2 << 20, tmp_path / "segment")
    assert not (tmp_path / "segment").exists()


def test_a_full_filesystem_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make the segment smaller or the tmpfs larger"):
        allocate_shared("test", 1 << 50, tmp_path / "segment")
    assert not (tmp_path / "segment").exists()


def test_more_than_the_host_has_is_refused_before_a_page_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def untouched(*_: object) -> None:
        raise AssertionError("a page was taken")

    monkeypatch.setattr(os, "posix_fallocate", untouched)
    with pytest.raises(ConfigError, match=r"kv needs .* but this host has .* left"):
        allocate_shared("kv", 1 << 53)
    assert 0 < available_bytes() < 1 << 50


def test_a_directory_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot create"):
        allocate_shared("test", 4096, tmp_path / "file" / "segment")


def test_overlapping_and_empty_memory_is_refused() -> None:
    table, array = RegionTable(), np.zeros(100, np.uint8)
    first = table.register(array[:50])
    table.register(array[50:])
    with pytest.raises(TransferError, match="overlaps region"):
        table.register(array[49:51])
    with pytest.raises(TransferError, match="empty"):
        table.register(array[:0])
    table.deregister(first.region_id)
    assert table.register(array[:50]).region_id != first.region_id
    with pytest.raises(TransferError, match="not registered"):
        table.get(first.region_id)
    with pytest.raises(TransferError, match="not registered"):
        table.deregister(first.region_id)


def test_peers_get_descriptors_that_cannot_write() -> None:
    table, memory = RegionTable(), allocate_shared("test", 4096)
    region = table.register(memory)
    descriptor = table.duplicate_fd(region.region_id)
    assert descriptor is not None
    with pytest.raises(OSError, match=r"Bad file descriptor|Permission"):
        os.write(descriptor, b"x")
    os.close(descriptor)
    assert table.duplicate_fd(table.register(bytearray(4)).region_id) is None
    table.close()
    memory.close()


def test_host_id_is_stable() -> None:
    assert host_id() == host_id()
    assert len(host_id()) == 16
