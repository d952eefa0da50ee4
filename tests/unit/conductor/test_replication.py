"""Where copies go, which replica is too many, and how fast copies may be made."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.conductor.replication import (
    COPY_DEADLINE_S,
    BlockCopies,
    CopyBudget,
    CopyNode,
    choose_surplus,
    choose_target,
    num_missing,
)
from daemons.core.ids import BlockHash, NodeId

MIB = 1 << 20


def node(name: str, domain: str = "", **more: object) -> CopyNode:
    fields: dict[str, object] = {
        "is_staying": True,
        "can_take": True,
        "used_bytes": 0,
        "capacity_bytes": 100 * MIB,
    }
    return CopyNode(node=NodeId(name), domain=domain or name, **{**fields, **more})  # type: ignore[arg-type]


def pool(*nodes: CopyNode) -> dict[NodeId, CopyNode]:
    return {each.node: each for each in nodes}


def block(*holders: str, wanted: int = 2, away: str = "", number: int = 0) -> BlockCopies:
    return BlockCopies(
        hash=BlockHash(number.to_bytes(16, "big")),
        num_bytes=MIB,
        wanted=wanted,
        holders=tuple(NodeId(holder) for holder in holders),
        away=frozenset(filter(None, [away])),
    )


def test_copies_go_to_another_domain() -> None:
    nodes = pool(node("a", "rack1"), node("b", "rack1"), node("c", "rack2"))
    assert num_missing(block("a"), nodes) == 1
    assert choose_target(block("a"), nodes, full=0.9) == "c"
    assert num_missing(block("a", "b"), nodes) == 1, "two of one domain are one"
    assert num_missing(block("a", "c"), nodes) == 0


def test_no_more_is_missing_than_there_are_domains() -> None:
    nodes = pool(node("a", "rack1"), node("b", "rack1"))
    assert num_missing(block("a", wanted=3), nodes) == 0
    assert choose_target(block("a", wanted=3), nodes, full=0.9) is None


def test_a_node_that_may_be_back_counts_as_there() -> None:
    nodes = pool(node("a"), node("b"))
    assert num_missing(block("a", away="c"), nodes) == 0
    assert num_missing(block("a"), nodes) == 1


def test_suspects_keep_what_they_have_and_get_nothing_and_draining_ones_neither() -> None:
    suspect = node("s", can_take=False)
    draining = node("d", is_staying=False, can_take=False)
    nodes = pool(node("a"), suspect, draining, node("b"))
    assert num_missing(block("a", "s"), nodes) == 0
    assert num_missing(block("a", "d"), nodes) == 1
    assert num_missing(block("d", wanted=1), nodes) == 1
    assert choose_target(block("a", "d"), nodes, full=0.9) == "b"


def test_full_and_busy_nodes_are_passed_over() -> None:
    nodes = pool(node("a"), node("b", used_bytes=90 * MIB), node("c"))
    assert choose_target(block("a"), nodes, full=0.9) == "c"
    assert choose_target(block("a"), nodes, full=0.9, busy={NodeId("c")}) is None
    assert choose_target(block("a"), nodes, full=0.95, busy={NodeId("c")}) == "b"


def test_preferred_nodes_come_first() -> None:
    nodes = pool(*(node(name) for name in "abcd"))
    for wish in "bcd":
        assert choose_target(block("a"), nodes, full=0.9, prefer=[NodeId(wish)]) == wish


def test_copies_are_spread_in_equal_shares_whoever_is_emptiest() -> None:
    nodes = pool(
        node("a"), node("b", used_bytes=50 * MIB), node("c", used_bytes=60 * MIB), node("d")
    )
    counts = Counter(choose_target(block("a", number=n), nodes, full=0.9) for n in range(3000))
    assert set(counts) == {"b", "c", "d"}
    assert max(counts.values()) < 1.3 * min(counts.values())


def test_surplus_is_taken_from_the_fullest_and_never_below_what_is_wanted() -> None:
    nodes = pool(node("a", used_bytes=10), node("b", used_bytes=30), node("c", used_bytes=20))
    assert choose_surplus(block("a", "b", "c"), nodes) == "b"
    assert choose_surplus(block("a", "b"), nodes) is None
    assert choose_surplus(block("a", "b", "c", wanted=3), nodes) is None


def test_of_two_replicas_in_one_domain_one_goes_first() -> None:
    nodes = pool(node("a", "r1"), node("b", "r1", used_bytes=5), node("c", "r2", used_bytes=90))
    assert choose_surplus(block("a", "b", "c"), nodes) == "b"


def test_a_replica_on_a_suspect_node_saves_nobody() -> None:
    nodes = pool(node("a"), node("b"), node("c", can_take=False))
    assert choose_surplus(block("a", "b", "c"), nodes) is None


@settings(deadline=None)
@given(st.data())
def test_a_target_always_adds_a_domain_and_a_surplus_never_takes_the_last(
    data: st.DataObject,
) -> None:
    names = "abcdef"
    nodes = pool(
        *(
            node(
                name,
                data.draw(st.sampled_from(["r1", "r2", "r3"])),
                is_staying=(is_staying := data.draw(st.booleans())),
                can_take=is_staying and data.draw(st.booleans()),
                used_bytes=data.draw(st.integers(0, 100)) * MIB,
            )
            for name in names
        )
    )
    holders = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    at = block(*holders, wanted=data.draw(st.integers(1, 4)))
    target = choose_target(at, nodes, full=0.9)
    if target is not None:
        assert nodes[target].can_take
        staying = [nodes[NodeId(h)].domain for h in holders if nodes[NodeId(h)].is_staying]
        assert nodes[target].domain not in staying
    gone = choose_surplus(at, nodes)
    if gone is not None:
        left = {nodes[NodeId(h)].domain for h in holders if h != gone and nodes[NodeId(h)].can_take}
        assert len(left) >= min(at.wanted, len(left | {nodes[gone].domain}))


A, B, T = NodeId("a"), NodeId("b"), NodeId("t")


def name(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "big"))


def test_bytes_in_flight_are_bounded_for_each_target() -> None:
    budget = CopyBudget(max_in_flight_bytes=3 * MIB, bytes_per_s=MIB)
    for number in range(3):
        assert budget.may_start(T, MIB, is_paced=False, now_s=0)
        budget.start(name(number), T, MIB, is_paced=False, now_s=0)
    assert not budget.may_start(T, MIB, is_paced=False, now_s=0)
    assert budget.may_start(A, 50 * MIB, is_paced=False, now_s=0), "a large one may, alone"
    assert budget.end(name(1), T)
    assert not budget.end(name(1), T)
    assert budget.may_start(T, MIB, is_paced=False, now_s=0)
    assert budget.targets_of(name(0), [A, T]) == {T}


@pytest.mark.parametrize("step_s", [0.02, 0.3])
def test_repairs_keep_to_the_rate_and_new_blocks_need_not(step_s: float) -> None:
    budget = CopyBudget(max_in_flight_bytes=1 << 40, bytes_per_s=10 * MIB)
    number, now_s = 0, 0.0
    while now_s < 10.0:
        while budget.may_start(T, MIB, is_paced=True, now_s=now_s):
            budget.start(name(number), T, MIB, is_paced=True, now_s=now_s)
            number += 1
        assert budget.may_start(T, MIB, is_paced=False, now_s=now_s)
        now_s += step_s
    assert number == pytest.approx(100, rel=0.2 if step_s < 0.25 else 0.4)


def test_a_copy_that_is_never_reported_is_taken_for_lost() -> None:
    budget = CopyBudget(max_in_flight_bytes=2 * MIB, bytes_per_s=MIB)
    budget.start(name(1), T, MIB, is_paced=False, now_s=0)
    budget.start(name(2), T, MIB, is_paced=False, now_s=5)
    assert budget.expire(COPY_DEADLINE_S - 0.1) == 0
    assert budget.expire(COPY_DEADLINE_S + 0.1) == 1
    assert (budget.num_of(name(1)), budget.num_of(name(2)), len(budget)) == (0, 1, 1)


def test_a_target_that_failed_is_left_alone_for_a_moment_and_one_that_is_gone_forgotten() -> None:
    budget = CopyBudget(max_in_flight_bytes=2 * MIB, bytes_per_s=MIB)
    budget.start(name(1), T, MIB, is_paced=False, now_s=0)
    budget.pause(T, 2.0)
    assert not budget.may_start(T, MIB, is_paced=False, now_s=1.9)
    assert budget.may_start(T, MIB, is_paced=False, now_s=2.1)
    budget.forget(T)
    assert len(budget) == 0
    assert budget.may_start(T, 2 * MIB, is_paced=False, now_s=0)
