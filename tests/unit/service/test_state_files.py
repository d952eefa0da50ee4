"""Whatever lies where a daemon keeps a small file, the daemon says so at once; it neither waits for it nor reads on."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.full_disk import room_for

from daemons.core.errors import ConfigError, Exhausted
from daemons.core.ids import NodeId
from daemons.mc_cachenode.segments.segment_list import SegmentList
from daemons.mc_master.nodes.drain_list import DrainList
from daemons.mc_master.nodes.incarnation import next_incarnation
from daemons.mc_master.nodes.kept_nodes import KeptNodes
from daemons.mc_master.tenants.quota_file import QuotaFile
from daemons.service.paths import read_state, write_durably

pytestmark = pytest.mark.timeout(60)


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


PUT_THERE: list[Callable[[Path], object]] = [
    lambda path: path.mkdir(),
    os.mkfifo,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to(path),
    make_huge,
    lambda path: path.write_bytes(b"[" * 200_000),
    lambda path: path.write_bytes(b"9" * 5000),
]


@pytest.mark.parametrize("put_there", PUT_THERE)
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("draining.json", DrainList),
        ("pool_quotas.json", QuotaFile),
        ("incarnation", next_incarnation),
    ],
)
def test_a_master_is_not_started_on_what_is_no_state_of_it(
    tmp_path: Path, name: str, read: Callable[[Path], object], put_there: Callable[[Path], object]
) -> None:
    put_there(tmp_path / name)
    with pytest.raises(ConfigError, match=name) as caught:
        read(tmp_path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("put_there", PUT_THERE[:5])
def test_what_a_daemon_can_do_without_is_empty(
    tmp_path: Path, put_there: Callable[[Path], object]
) -> None:
    put_there(tmp_path / "cachenodes")
    assert list(KeptNodes(tmp_path / "cachenodes")) == []
    put_there(tmp_path / "segments.json")
    assert list(SegmentList(tmp_path, NodeId("node-a")).segments) == []
    assert not (tmp_path / "segments.json").is_dir()


def test_what_was_written_is_read_and_what_is_missing_is_said_to_be(tmp_path: Path) -> None:
    for data in (b"", b"x", b"y" * 5_000_000):
        write_durably(tmp_path / "file", data)
        assert read_state(tmp_path / "file") == data
    with pytest.raises(FileNotFoundError):
        read_state(tmp_path / "none")


def test_a_full_disk_changes_nothing_and_may_pass(tmp_path: Path) -> None:
    quotas, drains = QuotaFile(tmp_path), DrainList(tmp_path)
    quotas.set("acme", 1)
    drains.add(NodeId("a"))
    next_incarnation(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with room_for(0):
        for change in (
            lambda: quotas.set("acme", 2),
            lambda: drains.add(NodeId("b")),
            lambda: next_incarnation(tmp_path),
        ):
            with pytest.raises(Exhausted):
                change()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert (quotas.quotas, drains.nodes) == ({"acme": 1}, {NodeId("a")})


def test_a_pipe_where_the_next_file_is_made_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("state.new", "cachenodes.new"):
        os.mkfifo(tmp_path / name)
    write_durably(tmp_path / "state", b"kept")
    assert read_state(tmp_path / "state") == b"kept"
    KeptNodes(tmp_path / "cachenodes").add(NodeId("a"))
    assert list(KeptNodes(tmp_path / "cachenodes")) == ["a"]


def test_nodes_that_a_full_disk_could_not_take_are_kept_once_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "cachenodes"
    nodes = KeptNodes(path)
    nodes.add(NodeId("a"))
    with room_for(2):
        nodes.add(NodeId("b" * 5000))
        nodes.retry()
    assert [each.name for each in tmp_path.iterdir()] == ["cachenodes"]
    assert list(KeptNodes(path)) == ["a"]
    nodes.retry()
    assert set(KeptNodes(path)) == {"a", "b" * 5000}
