"""When blocks are hot, and when they are cool again."""

from hypothesis import given
from hypothesis import strategies as st

from daemons.conductor.hot_blocks import HashCounts, Heat, HotBlocks, HotRules
from daemons.conductor.replication import CopyNode, Spread, choose_spread
from daemons.core.ids import BlockHash, NodeId

RULES = HotRules(uses=10, window_s=60.0, max_replicas=3)
A, B = (BlockHash(bytes([number]) * 16) for number in (1, 2))


def used(hot: HotBlocks[list[BlockHash]], block_hash: BlockHash, times: int) -> list[Heat]:
    return [heat for _ in range(times) for heat in hot.use([block_hash])]


def test_a_block_gets_a_replica_for_each_so_many_uses() -> None:
    hot = HotBlocks(RULES, HashCounts())
    hot.roll(now_s=0)
    assert used(hot, A, 9) == []
    assert used(hot, A, 1) == [Heat(A, 2)]
    assert used(hot, A, 9) == []
    assert used(hot, A, 50) == [Heat(A, 3)], "no more than the most"
    assert used(hot, B, 9) == []
    assert len(hot) == 1


def test_it_cools_down_at_the_end_of_a_window_in_which_it_had_much_fewer() -> None:
    hot = HotBlocks(RULES, HashCounts())
    hot.roll(now_s=0)
    used(hot, A, 25)
    assert hot.roll(now_s=59) == []
    assert hot.roll(now_s=60) == []
    used(hot, A, 11)
    assert hot.roll(now_s=120) == [], "half of what it takes keeps them"
    used(hot, A, 9)
    assert hot.roll(now_s=180) == [Heat(A, 0)]
    assert len(hot) == 0
    assert hot.roll(now_s=240) == []


def test_it_cools_down_step_by_step() -> None:
    hot = HotBlocks(HotRules(uses=10, window_s=60.0, max_replicas=6), HashCounts())
    hot.roll(now_s=0)
    used(hot, A, 50)
    hot.roll(now_s=60)
    used(hot, A, 15)
    assert hot.roll(now_s=120) == [Heat(A, 2)]
    assert len(hot) == 1


def test_nothing_is_hot_where_that_is_off_and_all_cools_where_it_is_put_off() -> None:
    hot = HotBlocks(HotRules(uses=0, window_s=60.0, max_replicas=3), HashCounts())
    hot.roll(now_s=0)
    assert used(hot, A, 100) == []
    hot.rules = RULES
    used(hot, A, 10)
    hot.rules = HotRules(uses=0, window_s=60.0, max_replicas=3)
    assert hot.roll(now_s=60) == [Heat(A, 0)]


@given(st.lists(st.lists(st.sampled_from([A, B]), max_size=40), max_size=8))
def test_what_was_said_last_of_a_block_is_what_it_has(windows: list[list[BlockHash]]) -> None:
    hot, wanted = HotBlocks(RULES, HashCounts()), {A: 0, B: 0}
    hot.roll(now_s=0)
    for number, window in enumerate(windows, 1):
        for block_hash in window:
            for heat in hot.use([block_hash]):
                assert heat.num_replicas > max(1, wanted[heat.hash])
                wanted[heat.hash] = heat.num_replicas
        for heat in hot.roll(now_s=60.0 * number):
            assert heat.num_replicas < wanted[heat.hash]
            wanted[heat.hash] = heat.num_replicas
    assert len(hot) == sum(count > 0 for count in wanted.values())


def node(name: str, used_bytes: int, *, can_take: bool = True) -> CopyNode:
    return CopyNode(NodeId(name), name, can_take, can_take, used_bytes, 100)


def spread(*nodes: CopyNode) -> Spread | None:
    return choose_spread({each.node: each for each in nodes}, full=0.9)


def test_cold_blocks_leave_a_node_that_is_about_to_evict_for_one_with_much_more_room() -> None:
    found = spread(node("a", 90), node("b", 50), node("c", 10))
    assert found == Spread(NodeId("a"), NodeId("c"), 20)
    assert spread(node("a", 80), node("b", 10)) is None, "it is not about to evict"
    assert spread(node("a", 95), node("b", 80)) is None, "the other has little more room"
    assert spread(node("a", 95), node("b", 10, can_take=False)) is None
    assert spread(node("a", 95)) is None
