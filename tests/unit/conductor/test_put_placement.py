"""New blocks are spread in turn; a node that joins gets more than the others, and less than twice its share."""

from dataclasses import replace

import pytest

from daemons.conductor.put_placement import PutNode, choose_put_target
from daemons.core.ids import HostId, NodeId

GB = 1 << 30


@pytest.mark.parametrize("num_old", [1, 2, 3, 7])
def test_a_joining_node_gets_at_most_twice_its_share(num_old: int) -> None:
    nodes = {
        NodeId(f"old{number}"): PutNode(
            node=NodeId(f"old{number}"),
            host_id=HostId(f"h{number}"),
            state="alive",
            used_bytes=60 * GB,
            capacity_bytes=100 * GB,
            last_chosen=number,
        )
        for number in range(num_old)
    }
    fresh = NodeId("fresh")
    nodes[fresh] = PutNode(
        node=fresh,
        host_id=HostId("hf"),
        state="alive",
        used_bytes=0,
        capacity_bytes=100 * GB,
        last_chosen=0,
    )
    counts = dict.fromkeys(nodes, 0)
    num_plans = 1200
    for plan in range(100, 100 + num_plans):
        chosen = choose_put_target(list(nodes.values()), near=HostId("elsewhere"), full=0.95)
        assert chosen is not None
        counts[chosen] += 1
        nodes[chosen] = replace(nodes[chosen], last_chosen=plan)
    share = num_plans / len(nodes)
    assert share < counts[fresh] <= 2 * share
    others = [count for node, count in counts.items() if node != fresh]
    assert min(others) >= share / 2
    assert max(others) - min(others) <= num_plans / 100
