"""The list of added segments: durable, never half written, set aside where it cannot be understood."""

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemons.core.errors import ConfigError, Exhausted
from daemons.core.ids import NodeId
from daemons.mc_cachenode.segments.segment_list import AddedSegment, SegmentList

NODE = NodeId("node-a")
FIRST = AddedSegment(number=1, directory="/dev/shm", size_bytes=1 << 20)
SECOND = AddedSegment(number=2, directory="/dev/shm/b", size_bytes=1 << 21)


def test_what_was_added_is_there_again_and_numbers_are_never_used_twice(tmp_path: Path) -> None:
    known = SegmentList(tmp_path / "state", NODE)
    assert not (tmp_path / "state").exists(), "nothing is written before there is something"
    known.add(FIRST)
    known.add(SECOND)
    known.leave(1)
    again = SegmentList(tmp_path / "state", NODE)
    assert [(each.number, each.is_leaving) for each in again.segments] == [(1, True), (2, False)]
    again.remove(2)
    again.remove(1)
    assert (list(again.segments), SegmentList(tmp_path / "state", NODE).next_number) == ([], 3)


def test_a_list_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    known = SegmentList(tmp_path, NODE)
    known.add(FIRST)
    (tmp_path / "segments.json.new").mkdir()
    with pytest.raises(Exhausted, match=r"segments\.json: cannot be written"):
        known.add(SECOND)
    assert list(known.segments) == [FIRST] == list(SegmentList(tmp_path, NODE).segments)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 300), bit=st.integers(0, 7), is_cut=st.booleans())
def test_any_damage_leaves_a_list_that_makes_sense_or_an_empty_one_and_the_file_aside(
    tmp_path: Path, at: int, bit: int, is_cut: bool
) -> None:
    directory = tmp_path / os.urandom(6).hex()
    known = SegmentList(directory, NODE)
    known.add(FIRST)
    known.add(SECOND)
    path = directory / "segments.json"
    data = bytearray(path.read_bytes())
    at %= len(data)
    if is_cut:
        del data[at:]
    else:
        data[at] ^= 1 << bit
    path.write_bytes(data)
    with contextlib.suppress(
        ConfigError
    ):  # in the node's own name: a start that is refused, and says why
        check_found(directory, bytes(data))


def check_found(directory: Path, data: bytes) -> None:
    found = SegmentList(directory, NODE)
    if (directory / "segments.json").exists():
        assert len(found.segments) == 2
    else:
        assert not found.segments
        assert (directory / "segments.damaged").read_bytes() == data
    found.add(AddedSegment(number=found.next_number, directory="/dev/shm", size_bytes=4096))


def test_the_list_of_another_node_is_refused(tmp_path: Path) -> None:
    SegmentList(tmp_path, NODE).add(FIRST)
    with pytest.raises(ConfigError, match=r"is of node node-a, this is node-b; give each its own"):
        SegmentList(tmp_path, NodeId("node-b"))
