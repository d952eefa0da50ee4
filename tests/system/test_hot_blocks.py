"""Hot blocks on three real nodes: copied while many read them, dropped when cool; cold ones leave a full node."""

from collections.abc import Iterator

import pytest
from kit.daemon import wait_for
from kit.pool import short_directory
from kit.replicated_pool import TOKENS, ReplicatedPool

from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.event import BlocksMoved, PastEvent, ReadEvents
from daemons.protocol.messages import decode_event

USES = 3


@pytest.fixture(scope="module")
def pool() -> Iterator[ReplicatedPool]:
    with short_directory() as directory:
        running = ReplicatedPool(
            directory,
            3,
            f"pool.hot_uses={USES}",
            "pool.hot_window_s=1",
            "pool.spread_cold=true",
            "pool.lease_s=0.3",
        )
        try:
            yield running
        finally:
            running.close()


def moves(pool: ReplicatedPool) -> list[PastEvent]:
    return pool.client.read_events(ReadEvents(topics=["blocksmoved"])).events


def used_share(pool: ReplicatedPool, name: str) -> float:
    listed = pool.node(name)
    return listed.used_bytes / listed.capacity_bytes


def wait_for_sources(pool: ReplicatedPool, hashes: list[BlockHash], count: int) -> None:
    """Look up, which keeps them hot, until so many nodes take turns. Each look-up gets all blocks from one node."""

    def take_turns() -> bool:
        matches = [pool.match(hashes).locations.unpack() for _ in range(2 * count)]
        sources = [{at.node for at in locations} for locations in matches]
        assert all(len(locations) == len(hashes) for locations in matches)
        return len(set().union(*sources)) == count and all(len(nodes) == 1 for nodes in sources)

    wait_for(take_turns, 60, f"{count} sources of what is read all the time")


def test_what_many_read_is_copied_read_everywhere_and_dropped_when_cool(
    pool: ReplicatedPool,
) -> None:
    hot = pool.put("n0", range(4 * TOKENS))
    cold = pool.put("n0", range(1000, 1000 + 2 * TOKENS))
    for _ in range(USES - 1):
        assert pool.read(hot) == 4
    assert pool.where(hot) == [{NodeId("n0")}] * 4
    wait_for_sources(pool, hot, 3)
    assert pool.read(hot) == 4
    assert pool.where(cold) == [{NodeId("n0")}] * 2
    pool.wait_for_replicas(hot, 1, 60)
    assert pool.read(hot) == 4


def test_cold_blocks_leave_a_full_node_for_an_empty_one(pool: ReplicatedPool) -> None:
    """Blocks leave from 85 % on; at 95 % they would be evicted."""
    chains: list[list[BlockHash]] = []
    hashes: list[BlockHash] = []

    def has_moved() -> bool:
        return any(nodes and NodeId("n1") not in nodes for nodes in pool.where(hashes))

    while used_share(pool, "n1") < 0.86 and not has_moved():
        first = 10_000 * (len(chains) + 1)
        chains.append(pool.put("n1", range(first, first + 10 * TOKENS)))
        hashes += chains[-1]

    wait_for(has_moved, 60, "cold blocks on another node")
    wait_for(lambda: all(pool.where(hashes)), 30, "all blocks somewhere")
    assert pool.read(chains[0]) == 10, "the coldest can still be read"
    wait_for(lambda: moves(pool), 20, "an event of a move")
    moved = [decode_event(event.payload) for event in moves(pool)]
    assert {each.from_node for each in moved if isinstance(each, BlocksMoved)} == {NodeId("n1")}
