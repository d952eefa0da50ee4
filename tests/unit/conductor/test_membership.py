"""Silence is counted in ticks; a new life of a node takes the place of the old."""

import pytest

from daemons.conductor import membership
from daemons.conductor.membership import MAX_FORGIVEN_TICKS, Membership
from daemons.core.errors import Conflict, Exhausted, Unavailable
from daemons.core.ids import Epoch, HostId, NodeId
from daemons.protocol.node import NodeDescription

N0 = NodeId("n0")


def describe(node: str = "n0", epoch: int = 1) -> NodeDescription:
    return NodeDescription(
        node=NodeId(node),
        role="cachenode",
        host="h",
        host_id=HostId("h"),
        epoch=Epoch(epoch),
        control="tcp://127.0.0.1:1",
        pid=1,
        software="",
    )


def joined(suspect_beats: int = 2, dead_beats: int = 6) -> Membership:
    members = Membership(suspect_beats, dead_beats)
    members.join(describe(), peer=b"p", now_s=0)
    return members


def changes(members: Membership, ticks: int) -> list[str]:
    return [transition.change for _ in range(ticks) for transition in members.tick()]


def test_silent_node_is_suspect_then_dead() -> None:
    members = joined()
    assert changes(members, 2) == []
    assert changes(members, 1) == ["suspect"]
    assert changes(members, 3) == []
    assert changes(members, 1) == ["dead"]


def test_one_beat_clears_suspicion() -> None:
    members = joined()
    changes(members, 4)
    member, transition = members.hear(N0, 1, peer=b"q", now_s=1)
    assert transition is not None
    assert (transition.change, member.state, member.peer) == ("alive", "alive", b"q")
    assert changes(members, 2) == []


def test_readers_make_a_node_suspect_and_its_next_beat_clears_it() -> None:
    members = joined()
    assert members.doubt(N0, 7) is None, "of another life"
    assert members.doubt(NodeId("n9"), 1) is None
    transition = members.doubt(N0, 1)
    assert transition is not None
    assert (transition.change, transition.member.state) == ("suspect", "suspect")
    assert members.doubt(N0, 1) is None
    _, cleared = members.hear(N0, 1, peer=b"p", now_s=1)
    assert cleared is not None
    assert members.doubt(N0, 1) is None, "it has just been heard"
    for _ in range(membership.TRUSTED_TICKS):
        members.tick()
        members.hear(N0, 1, peer=b"p", now_s=1)
    assert members.doubt(N0, 1) is not None


def test_doubts_alone_never_make_a_node_dead() -> None:
    members = joined()
    for _ in range(50):
        members.doubt(N0, 1)
        assert changes(members, 1) == []
        members.hear(N0, 1, peer=b"p", now_s=1)


def test_dead_unknown_or_earlier_life_must_join_again() -> None:
    members = joined()
    for node, epoch in ((N0, 2), (NodeId("other"), 1)):
        with pytest.raises(Unavailable, match="join again"):
            members.hear(node, epoch, peer=b"p", now_s=1)
    changes(members, 7)
    with pytest.raises(Unavailable, match="join again"):
        members.hear(N0, 1, peer=b"p", now_s=1)
    members.join(describe(), peer=b"p", now_s=2)
    members.hear(N0, 1, peer=b"p", now_s=3)


def test_forgiving_restarts_the_count() -> None:
    members = joined()
    changes(members, 2)
    members.forgive()
    assert changes(members, 2) == []


def test_who_never_speaks_again_is_dead_at_last_however_often_the_master_is_held_up() -> None:
    members = joined()
    seen = []
    for _ in range(MAX_FORGIVEN_TICKS + 7):
        members.forgive()
        seen += changes(members, 1)
    assert seen == ["suspect", "dead"]


def test_who_speaks_in_between_is_forgiven_each_time() -> None:
    members = joined()
    for _ in range(MAX_FORGIVEN_TICKS):
        for _ in range(4):
            members.forgive()
            assert changes(members, 1) == []
        members.hear(N0, 1, peer=b"p", now_s=1)


def test_another_life_replaces_and_leave_of_the_old_one_does_nothing() -> None:
    members = joined()
    earlier = members.join(describe(epoch=2), peer=b"p", now_s=5)
    assert earlier is not None
    assert earlier.node.epoch == 1
    assert members.leave(N0, Epoch(1)) is None
    assert members.leave(N0, Epoch(2)) is not None
    assert len(members) == 0


def test_two_processes_of_one_id_do_not_take_turns() -> None:
    """The newer one stays; the older one is told why, and may come back when the newer one is gone."""
    members = joined()
    members.join(describe(epoch=2), peer=b"p", now_s=5)
    for _ in range(3):
        with pytest.raises(Conflict, match=r"'n0' belongs to a newer process.*node\.id"):
            members.join(describe(epoch=1), peer=b"q", now_s=6)
        members.hear(N0, 2, peer=b"p", now_s=6)
        members.join(describe(epoch=2), peer=b"p", now_s=6)
    changes(members, 7)
    members.join(describe(epoch=1), peer=b"q", now_s=7)
    members.hear(N0, 1, peer=b"q", now_s=7)
    with pytest.raises(Conflict):
        members.join(describe(epoch=2), peer=b"p", now_s=8)
    members.leave(N0, Epoch(1))
    members.join(describe(epoch=2), peer=b"p", now_s=9)


def test_dead_nodes_are_forgotten_in_time() -> None:
    members = joined()
    assert changes(members, membership.KEEP_DEAD_TICKS + 8)[-1] == "forgotten"
    assert len(members) == 0


def test_membership_is_bounded_and_the_dead_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MAX_NODES", 2)
    members = joined()
    members.join(describe("n1"), peer=b"p", now_s=0)
    with pytest.raises(Exhausted):
        members.join(describe("n2"), peer=b"p", now_s=0)
    changes(members, 7)
    members.join(describe("n2"), peer=b"p", now_s=0)
    assert len(members) == 2
