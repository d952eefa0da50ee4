"""Whatever lies where a node keeps its files, it starts or says why not; and it writes to no file of another."""

import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.index_records import HEADER

from daemons.config.mc_cachenode import SegmentSection
from daemons.core.errors import ConfigError
from daemons.core.ids import BlockHash, NodeId
from daemons.mc_cachenode.replica import wall_ms
from daemons.mc_cachenode.segments.storage import Storage, open_storage, segment_path
from daemons.service import fd_store
from daemons.service.fd_store import FdStore
from daemons.store.index.format import encode_header

NODE = NodeId("node-a")


def section(directory: Path) -> SegmentSection:
    return SegmentSection(size="4MiB", directory=str(directory))


def open_and_close(directory: Path) -> list[str]:
    """What was lost."""
    lost: list[str] = []
    storage = open_storage(section(directory), NODE, lambda what, _: lost.append(what), FdStore())
    try:
        assert storage.replicas.num_sealed == 0
    finally:
        storage.close()
    return lost


@pytest.mark.parametrize("has_segment", [True, False])
@pytest.mark.parametrize(
    "put_there",
    [
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
        lambda path: os.close(os.open(path, os.O_CREAT)) or os.truncate(path, 1 << 30),
    ],
)
def test_a_node_starts_beside_whatever_has_its_index_name(
    tmp_path: Path, put_there: Callable[[Path], object], has_segment: bool
) -> None:
    assert open_and_close(tmp_path) == []
    path = segment_path(section(tmp_path), NODE)
    index = path.with_suffix(".index")
    index.unlink()
    put_there(index)
    if has_segment:
        assert open_and_close(tmp_path) == ["index"]
    else:
        path.unlink()
        open_and_close(tmp_path)
    if not index.is_dir():
        assert open_and_close(tmp_path) == []


def test_a_link_in_the_place_of_a_new_index_is_not_followed(tmp_path: Path) -> None:
    open_and_close(tmp_path)
    index = segment_path(section(tmp_path), NODE).with_suffix(".index")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for path in (index, index.with_name("node-a.index.new")):
        path.unlink(missing_ok=True)
        path.symlink_to(victim)
    open_and_close(tmp_path)
    assert victim.read_text() == "precious"
    assert not index.is_symlink()


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: another)
    segment_path(section(tmp_path), NODE).parent.mkdir()
    with pytest.raises(ConfigError, match="no directory of this user"):
        open_and_close(tmp_path)


def test_a_link_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    path = segment_path(section(tmp_path), NODE)
    (tmp_path / "elsewhere").mkdir()
    path.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="no directory of this user"):
        open_and_close(tmp_path)


@pytest.fixture
def huge_pages(tmp_path: Path) -> Iterator[Path]:
    """A hugetlbfs, where some pages are set apart for it."""
    free = re.search(r"HugePages_Free:\s+(\d+)", Path("/proc/meminfo").read_text())
    if os.geteuid() != 0 or free is None or int(free[1]) < 2:
        pytest.skip("needs root and two free huge pages: sysctl -w vm.nr_hugepages=2")
    place = tmp_path / "huge"
    place.mkdir()
    subprocess.run(["mount", "-t", "hugetlbfs", "none", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_segment_of_huge_pages_is_taken_over_by_an_index_elsewhere(
    tmp_path: Path, huge_pages: Path
) -> None:
    config = SegmentSection(
        size="4MiB", directory=str(huge_pages), index_directory=str(tmp_path / "index")
    )
    for content in (0, 7):
        storage = open_storage(config, NODE, lambda *_: None, FdStore())
        assert storage.first.segment.array[4096] == content
        storage.first.segment.array[4096] = 7
        assert storage.is_index_written
        storage.close()
    assert [path.suffix for path in huge_pages.rglob("node-a.*")] == [".segment"]


@pytest.mark.parametrize("foreign", [b"", b"no index", encode_header(HEADER)])
def test_a_foreign_index_in_the_fd_store_hides_no_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreign: bytes
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    kept: dict[str, int] = {}
    lost: list[str] = []

    def open_it() -> Storage:
        monkeypatch.setattr(fd_store, "_inherited", lambda: dict(kept))
        config = SegmentSection(size="4MiB", directory="")
        return open_storage(config, NODE, lambda what, _: lost.append(what), FdStore())

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        monkeypatch.setattr(FdStore, "wait_until_heard", lambda _: None)
        storage = open_it()
        storage.replicas.remembered.die(BlockHash(bytes(16)), 7, wall_ms())
        storage.replicas.flush()
        while len(kept) < 2:
            data, fds, *_ = socket.recv_fds(systemd, 300, 2)
            if fds:
                kept[re.findall(rb"FDNAME=(.*)", data)[0].decode()] = fds[0]
        storage.close()
        kept["node-a-index-9"] = os.memfd_create("foreign")
        kept["node-a-index-09"] = os.memfd_create("none of ours")
        kept["node-a-index-\u00b2"] = os.memfd_create("none of ours")
        os.write(kept["node-a-index-9"], foreign)
        storage = open_it()
        assert [dead.version for dead in storage.replicas.remembered.dead_names()] == [7]
        assert lost == ["index"]
        storage.close()
