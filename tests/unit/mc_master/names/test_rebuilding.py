"""When a master may say that an object is absent."""

from pathlib import Path

from daemons.core.ids import Incarnation, NodeId
from daemons.mc_master.names.rebuilding import Rebuilding

A, B = NodeId("a"), NodeId("b")


def test_a_first_master_waits_for_nobody(tmp_path: Path) -> None:
    assert not Rebuilding(tmp_path, Incarnation(1), 30.0).is_on(0.0)


def test_a_later_one_waits_for_the_nodes_it_knew_and_no_longer_than_its_limit(
    tmp_path: Path,
) -> None:
    first = Rebuilding(tmp_path, Incarnation(1), 30.0)
    first.joined(A)
    first.joined(B)
    second = Rebuilding(tmp_path, Incarnation(2), 30.0)
    assert second.is_on(5.0)
    second.joined(A)
    second.announced(A)
    assert second.is_on(5.0)
    second.announced(B)
    assert not second.is_on(5.0)
    second.joined(B)
    assert not second.is_on(5.0), "once over it stays over"
    third = Rebuilding(tmp_path, Incarnation(3), 30.0)
    assert third.is_on(29.0)
    third.limit_s = 40.0  # a reload
    assert third.is_on(39.0)
    assert not third.is_on(40.0)


def test_a_node_that_left_is_not_waited_for(tmp_path: Path) -> None:
    first = Rebuilding(tmp_path, Incarnation(1), 30.0)
    first.joined(A)
    first.joined(B)
    first.left(B)
    second = Rebuilding(tmp_path, Incarnation(2), 30.0)
    second.announced(A)
    assert not second.is_on(0.1)


def test_one_that_lost_its_state_gives_nodes_time_to_join(tmp_path: Path) -> None:
    rebuilding = Rebuilding(tmp_path, Incarnation(7), 30.0)
    assert rebuilding.is_on(1.0)
    rebuilding.joined(A)
    rebuilding.announced(A)
    assert rebuilding.is_on(2.0)
    assert not rebuilding.is_on(4.0)
