"""An added segment takes memory only on the filesystem that it was added on; whatever is said of it is no crash."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from daemons.config.mc_cachenode import SegmentSection
from daemons.core.errors import NotFound
from daemons.core.ids import NodeId
from daemons.core.units import MIB
from daemons.mc_cachenode.segments.segment_directory import check_there, mount_of
from daemons.mc_cachenode.segments.segment_list import AddedSegment
from daemons.mc_cachenode.segments.storage import added_path, open_storage
from daemons.service.fd_store import FdStore

NODE = NodeId("node-a")
UNUSABLE = ["/" + "c" * 5000, "/dev/shm/\0x", "/nowhere", "/etc/passwd"]


def failures(directory: Path, added: Sequence[AddedSegment]) -> dict[int, str]:
    """Of a node that starts with these, by number."""
    section = SegmentSection(size="4MiB", directory=str(directory))
    storage = open_storage(section, NODE, lambda _what, _count: None, FdStore(), added)
    storage.close()
    return storage.failed


@pytest.mark.parametrize("directory", UNUSABLE)
def test_a_directory_that_cannot_be_is_refused_in_a_line_and_fails_alone_at_the_start(
    tmp_path: Path, directory: str
) -> None:
    with pytest.raises(NotFound) as caught:
        mount_of(directory)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()
    added = AddedSegment(number=3, directory=directory, size_bytes=4 * MIB)
    assert list(failures(tmp_path, [added])) == [3]


def test_memory_is_not_taken_on_what_lies_under_a_tmpfs_that_is_not_mounted(tmp_path: Path) -> None:
    lent = tmp_path / "tmpfs"
    lent.mkdir()
    added = AddedSegment(number=1, directory=str(lent), size_bytes=4 * MIB, mount=str(lent))
    why = failures(tmp_path, [added])[1]
    assert f"nothing is mounted at {lent} now" in why
    assert not added_path(added, NODE).exists()


def test_what_is_mounted_as_it_was_is_used(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    mount = mount_of(str(link))
    assert Path(mount).is_mount()
    assert tmp_path.resolve().is_relative_to(mount)
    check_there(str(link), mount)
    added = AddedSegment(number=1, directory=str(link), size_bytes=4 * MIB, mount=mount)
    assert failures(tmp_path, [added]) == {}


def test_a_list_without_the_mount_is_of_an_earlier_release_and_checks_none(tmp_path: Path) -> None:
    added = AddedSegment(number=1, directory=str(tmp_path), size_bytes=4 * MIB)
    assert failures(tmp_path, [added]) == {}


@pytest.mark.parametrize("number", [0, -1, 1 << 16, 1 << 62])
def test_numbers_that_the_master_refuses_are_none_of_segments(number: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        AddedSegment(number=number, directory="/dev/shm", size_bytes=4 * MIB)
