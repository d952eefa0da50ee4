"""Drain, move and replicate what a node has below its DRAM: staged there, copied, and only then safe to lose."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.daemon import wait_for
from kit.pool import short_directory
from kit.replicated_pool import TOKENS, ReplicatedPool

from daemons.core.ids import BlockHash
from daemons.protocol.block import BlockFilter
from mcctl.main import main

NUM_BLOCKS = 150
"""Staged all at once they would need more than the 2 MiB that a segment of 16 MiB keeps for it."""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[ReplicatedPool]:
    """Only n0 has an SSD."""
    with short_directory() as directory:
        pool = ReplicatedPool(directory, 0)
        plain = pool.node_settings
        try:
            pool.node_settings = (
                *plain,
                f"ssd.directory={tmp_path}",
                "ssd.capacity=64MiB",
                "ssd.bucket=4MiB",
            )
            pool.add_node("n0")
            pool.node_settings = plain
            pool.add_node("n1")
            for node in pool.nodes.values():
                node.find(r"(joined) master")
            yield pool
        finally:
            pool.close()


def put_on_ssd(pool: ReplicatedPool, num_blocks: int) -> list[BlockHash]:
    hashes = pool.put("n0", range(TOKENS * num_blocks))

    def is_written() -> bool:
        pool.client.flush_blocks(BlockFilter(), to="ssd", evict=True)
        return tiers(pool, hashes) == {("n0", "ssd")}

    wait_for(is_written, 20, "on the SSD alone")
    return hashes


def tiers(pool: ReplicatedPool, hashes: list[BlockHash]) -> set[tuple[str, str]]:
    return {(at.node, at.tier) for each in pool.client.locate(hashes) for at in each}


def mcctl(pool: ReplicatedPool, *words: str) -> int:
    return main([*words, "--endpoint", pool.endpoint])


def test_what_lies_on_the_ssd_alone_is_staged_and_copied_before_a_drained_node_is_safe(
    pool: ReplicatedPool, capsys: pytest.CaptureFixture[str]
) -> None:
    hashes = put_on_ssd(pool, NUM_BLOCKS)
    assert mcctl(pool, "node", "drain", "n0") == 0
    assert pool.node("n0").left_below_blocks > 0
    assert mcctl(pool, "node", "drain", "n0", "--wait") == 0
    assert "n0 is drained: it is safe to stop it" in capsys.readouterr().out
    assert ("n1", "dram") in tiers(pool, hashes)
    pool.nodes["n0"].kill()
    wait_for(lambda: pool.state("n0") == "dead", 20, "n0 dead")
    assert pool.read(hashes) == NUM_BLOCKS


def test_blocks_of_the_ssd_are_replicated_and_moved_and_leave_it(pool: ReplicatedPool) -> None:
    hashes = put_on_ssd(pool, 6)
    one, *others = hashes
    assert mcctl(pool, "cache", "replicate", one.hex(), "--count", "2", "--wait") == 0
    assert {("n0", "ssd"), ("n1", "dram")} <= tiers(pool, [one])
    assert mcctl(pool, "cache", "move", "--node", "n0", "--to", "n1", "--wait") == 0
    wait_for(lambda: tiers(pool, hashes) == {("n1", "dram")}, 20, "only at n1")
    assert pool.read(hashes) == 1 + len(others)


def test_a_drain_that_cannot_get_on_says_why(
    pool: ReplicatedPool, capsys: pytest.CaptureFixture[str]
) -> None:
    put_on_ssd(pool, 4)
    pool.nodes["n1"].kill()
    wait_for(lambda: pool.state("n1") == "dead", 20, "n1 dead")
    assert mcctl(pool, "node", "drain", "n0") == 0
    assert mcctl(pool, "wait", "drained", "n0", "--timeout", "0.3") != 0
    said = capsys.readouterr().err
    assert "4 blocks" in said
    assert "4 of them below its DRAM; no other node takes blocks" in said
    for words in ((), ("--node", "n1")):
        assert mcctl(pool, "cache", "flush", "--wait", *words) == 7
        assert "what dead nodes hold is not written: n1. Start them" in capsys.readouterr().err
    assert mcctl(pool, "cache", "flush", "--node", "n0", "--wait") == 0
    for verb in (["flush"], ["flush", "--wait"], ["clear", "--yes"], ["move", "--to", "n0"]):
        assert mcctl(pool, "cache", *verb, "--node", "n") == 3, verb
        assert "no node n; those in the cluster: n0, n1" in capsys.readouterr().err
    assert pool.client.blocks(BlockFilter()), "nothing was cleared"


def test_what_a_full_node_cannot_take_stays_and_the_move_says_so(
    pool: ReplicatedPool, capsys: pytest.CaptureFixture[str]
) -> None:
    filler = pool.put("n1", range(TOKENS * 1000, TOKENS * 1300))
    pool.wait_for_replicas(filler, 1)
    pool.client.pin_blocks(filler[-1:], "hard", ttl_s=60)
    hashes = pool.put("n0", range(TOKENS * 200))
    words = ("cache", "move", "--node", "n0", "--to", "n1", "--wait")
    assert mcctl(pool, *words) != 0
    said = capsys.readouterr().err
    assert "could not be moved and stay: no room: moves fill node n1" in said
    assert pool.read(hashes) == len(hashes)
