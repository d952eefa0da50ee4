"""Two nodes with one object store: what the one wrote is read by the other while it is away."""

from collections.abc import Iterator
from itertools import count

import pytest
from kit.daemon import wait_for
from kit.object_server import ObjectServer
from kit.pool import short_directory
from kit.replicated_pool import ReplicatedPool

from daemons.client.staging import staged
from daemons.core.errors import McError
from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.block import BlockFilter

NUM_BLOCKS = 6
_numbers = count()


@pytest.fixture
def pool(object_server: ObjectServer) -> Iterator[ReplicatedPool]:
    bucket = f"adopted-{next(_numbers)}"
    object_server.make_bucket(bucket)
    with short_directory() as directory:
        (directory / "pool").mkdir()
        pool = ReplicatedPool(directory / "pool", 0)  # which removes its directory
        pool.node_settings += (
            *object_server.settings(bucket),
            "object.flush=write-through",
            "segment.keep=false",
        )
        try:
            for name in ("n0", "n1"):
                pool.add_node(name)
            for node in pool.nodes.values():
                node.find(r"(joined) master")
                node.find(r"(object tier opened)")
            yield pool
        finally:
            pool.close()


def test_another_node_reads_the_objects_of_one_that_is_out_until_it_is_back(
    pool: ReplicatedPool,
) -> None:
    hashes = pool.put("n0", range(16 * NUM_BLOCKS))
    wait_for(lambda: places(pool, hashes) == {("n0", "dram"), ("n0", "object")}, 20, "written")
    pool.nodes["n0"].kill()
    wait_for(lambda: places(pool, hashes) == {("n1", "object")}, 30, "adopted")
    with staged(pool.match(hashes).locations.unpack(), timeout_s=10) as here:
        assert pool.read_at(here) == NUM_BLOCKS
    pool.nodes["n0"].start()
    wait_for(lambda: ("n0", "object") in places(pool, hashes), 30, "back")
    wait_for(lambda: ("n1", "object") not in places(pool, hashes), 20, "given back")
    with staged(pool.match(hashes).locations.unpack(), timeout_s=10) as here:
        assert pool.read_at(here) == NUM_BLOCKS


def test_a_master_that_starts_while_the_owner_is_away_has_its_objects_adopted(
    pool: ReplicatedPool,
) -> None:
    hashes = pool.put("n0", range(16 * NUM_BLOCKS))
    wait_for(lambda: places(pool, hashes) == {("n0", "dram"), ("n0", "object")}, 20, "written")
    pool.nodes["n0"].kill()
    pool.master.kill()
    pool.master.start()

    def is_adopted() -> bool:
        try:
            return places(pool, hashes) == {("n1", "object")}
        except McError:  # it is just starting
            return False

    wait_for(is_adopted, 40, "adopted")
    with staged(pool.match(hashes).locations.unpack(), timeout_s=10) as here:
        assert pool.read_at(here) == NUM_BLOCKS


def test_a_drained_node_need_not_copy_what_others_can_read_in_the_object_store(
    pool: ReplicatedPool,
) -> None:
    hashes = pool.put("n0", range(16 * NUM_BLOCKS))

    def is_written() -> bool:
        pool.client.flush_blocks(BlockFilter(), to="object", evict=True)
        return places(pool, hashes) == {("n0", "object")}

    wait_for(is_written, 20, "in the object store alone")
    pool.client.drain_node(NodeId("n0"), is_draining=True)
    wait_for(lambda: pool.node("n0").left_blocks == 0, 20, "safe to stop")
    assert places(pool, hashes) == {("n0", "object")}
    pool.nodes["n0"].kill()
    wait_for(lambda: places(pool, hashes) == {("n1", "object")}, 30, "adopted")
    with staged(pool.match(hashes).locations.unpack(), timeout_s=10) as here:
        assert pool.read_at(here) == NUM_BLOCKS


def places(pool: ReplicatedPool, hashes: list[BlockHash]) -> set[tuple[str, str]]:
    """Of those that all of them have, node and tier."""
    found = [{(at.node, at.tier) for at in each} for each in pool.client.locate(hashes)]
    return set.intersection(*found)
