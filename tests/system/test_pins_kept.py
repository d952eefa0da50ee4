"""Pins outlive the master and all nodes at once, and what was ended while a node was away stays ended."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.daemon import wait_for
from kit.replicated_pool import TOKENS, ReplicatedPool

from daemons.core.errors import McError
from daemons.core.ids import BlockHash
from daemons.protocol.block import BlockFilter


@pytest.fixture
def pool() -> Iterator[ReplicatedPool]:
    directory = Path(f"/tmp/mct-pins-{time.monotonic_ns() % 10**6}")
    directory.mkdir()
    running = ReplicatedPool(directory, 2)
    try:
        yield running
    finally:
        running.close()


def pins(pool: ReplicatedPool) -> dict[BlockHash, tuple[str, float]]:
    """Of each block that is there; none while the master is not."""
    try:
        listed = list(pool.client.blocks(BlockFilter()))
    except McError:
        return {}
    return {each.meta.hash: (each.pin, each.pin_left_s) for each in listed}


def wait_for_pins(pool: ReplicatedPool, wanted: dict[BlockHash, str]) -> None:
    def is_so() -> bool:
        found = pins(pool)
        return all(found.get(each, ("gone",))[0] == pin for each, pin in wanted.items())

    wait_for(is_so, 20, f"{wanted}, found {pins(pool)}")


def test_pins_are_there_after_all_were_killed_and_ended_ones_are_not(pool: ReplicatedPool) -> None:
    kept, ended = (
        pool.put(f"n{n}", range(TOKENS * 100 * n, TOKENS * (100 * n + 3)))[-1] for n in (0, 1)
    )
    pool.wait_for_replicas([kept, ended], 1)
    began_s = time.monotonic()
    pool.client.pin_blocks([kept, ended], "hard", ttl_s=600)
    pool.client.pin_blocks([ended], "none")
    wait_for_pins(pool, {kept: "hard", ended: "none"})
    time.sleep(0.3)  # the nodes are told
    for daemon in (pool.master, *pool.nodes.values()):
        daemon.kill()
    for daemon in (pool.master, *pool.nodes.values()):
        daemon.start()
    wait_for_pins(pool, {kept: "hard", ended: "none"})
    left_s = pins(pool)[kept][1]
    assert abs(left_s - (600 - (time.monotonic() - began_s))) < 5, "its end is where it was"
    pool.nodes["n0"].kill()
    wait_for(lambda: pool.state("n0") == "dead", 20, "n0 dead")
    pool.client.pin_blocks([kept], "none")
    pool.nodes["n0"].start()
    wait_for_pins(pool, {kept: "none", ended: "none"})
    time.sleep(0.5)  # the node is told again
    pool.master.kill()
    pool.master.start()
    wait_for_pins(pool, {kept: "none", ended: "none"})
    time.sleep(0.5)
    assert {pin for pin, _ in pins(pool).values()} == {"none"}
