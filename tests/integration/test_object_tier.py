"""A cache node with an object store: what it writes there outlives its DRAM, its SSD and itself."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from kit.daemon import wait_for
from kit.lower_tiers import damage, flush, put_all, read_in_pieces
from kit.object_server import ObjectServer
from kit.pool import Pool, SourceMemory, chain, running_pool, short_directory, sources

from daemons.client.cluster import ClusterClient
from daemons.client.staging import staged
from daemons.core.ids import BlockHash
from daemons.protocol.block import BlockFilter, Tier
from mcctl import Store

NUM_BLOCKS = 20


@pytest.fixture
def bucket(object_server: ObjectServer, request: pytest.FixtureRequest) -> str:
    name = f"blocks-{abs(hash(request.node.name)) % 10**8}"
    object_server.make_bucket(name)
    return name


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def make_source(directory: Path) -> Iterator[Callable[..., SourceMemory]]:
    with sources(directory) as make:
        yield make


@pytest.fixture
def settings(object_server: ObjectServer, bucket: str) -> list[str]:
    return [
        "segment.size=16MiB",
        *object_server.settings(bucket),
        "object.capacity=64MiB",
        "object.part=4MiB",
        "object.timeout_s=1",
    ]


def test_blocks_outlive_dram_and_ssd(
    directory: Path, make_source: Callable[..., SourceMemory], settings: list[str], tmp_path: Path
) -> None:
    """First what the SSD holds is damaged, then the machine is gone with its disks and another one takes its place."""
    source, hashes = make_source(NUM_BLOCKS), chain(NUM_BLOCKS)
    with_ssd = [*settings, "ssd.capacity=64MiB", "ssd.bucket=4MiB", "ssd.flush=manual"]
    with running_pool(directory, settings=[*with_ssd, f"ssd.directory={tmp_path / 'a'}"]) as pool:
        put_all(pool, source, hashes)
        pool.wait_until_sealed(hashes)
        with ClusterClient(pool.master) as cluster:
            assert flush(cluster, "ssd", evict=True).num_done == NUM_BLOCKS
            assert flush(cluster, "object", evict=False).num_done == NUM_BLOCKS
            assert {each.tier for each in pool.match(hashes)} == {"ssd"}
            damage(tmp_path)
            assert np.array_equal(read_in_pieces(source, pool, hashes), source.array)
        pool.node.process.kill()
        pool.node.process.wait()
        for file in directory.glob("shm/*/*"):
            file.unlink()
        pool.restart_node(*with_ssd, f"ssd.directory={tmp_path / 'b'}")
        locations = pool.wait_until_sealed(hashes)
        assert {location.tier for location in locations} == {"object"}
        assert np.array_equal(read_in_pieces(source, pool, hashes), source.array)


def test_what_the_ssd_gives_up_is_in_the_object_store_and_a_clear_deletes_it_everywhere(
    directory: Path, make_source: Callable[..., SourceMemory], settings: list[str], tmp_path: Path
) -> None:
    num_blocks = 90  # of which the SSD holds 50
    source, hashes = make_source(num_blocks), chain(num_blocks)
    settings = [
        *settings,
        f"ssd.directory={tmp_path}",
        "ssd.capacity=16MiB",
        "ssd.bucket=4MiB",
        "ssd.flush=write-through",
        "object.timeout_s=20",
    ]
    with running_pool(directory, settings=settings) as pool:
        for first in range(0, num_blocks, 10):
            put_all(pool, source, hashes[: first + 10], begin=first)
            time.sleep(0.3)
        with ClusterClient(pool.master) as cluster:
            wait_for(lambda: can_stage(cluster, hashes), 60)
            assert num_in(cluster, "ssd") < 60
            cluster.clear_blocks(BlockFilter())
            wait_for(lambda: cluster.cache_stat().num_blocks == 0)
            pool.node.process.kill()
            pool.node.process.wait()
            pool.restart_node(*settings)
            # Perhaps with what the store had not deleted yet: the master remembers, and has it deleted again.
            pool.node.find(r"object tier opened blocks=(\d+)")
            wait_for(lambda: used_in(cluster, "object") == 0, 60)
            assert pool.match(hashes) == []
            assert cluster.cache_stat().num_blocks == 0


def test_a_store_that_is_down_costs_misses_and_is_used_once_it_is_back(
    directory: Path,
    make_source: Callable[..., SourceMemory],
    settings: list[str],
    object_server: ObjectServer,
) -> None:
    """What was deleted or replaced while it hung stays so, though all memory is lost right after."""
    source, hashes = make_source(NUM_BLOCKS), chain(NUM_BLOCKS)
    with running_pool(directory, settings=[*settings, "segment.keep=false"]) as pool:
        put_all(pool, source, hashes)
        delete_and_replace_while_it_hangs(pool, object_server)
        lose_all_memory(pool)
        object_server.stop()
        assert pool.master_daemon is not None
        pool.master_daemon.start()
        pool.restart_node(*settings)
        assert pool.match(hashes) == []
        more = chain(5, seed=1)
        put_all(pool, source, more)
        assert {each.tier for each in pool.wait_until_sealed(more)} == {"dram"}
        object_server.start()
        wait_for(lambda: len(pool.match(hashes)) == NUM_BLOCKS, 90)  # it rests ever longer
        assert np.array_equal(read_in_pieces(source, pool, hashes), source.array)
        with Store(pool.master, namespace="n") as store:
            wait_for(lambda: store.exists("kept") == "present")
            assert store.get_many(["kept", "deleted", "replaced"]) == [b"old", None, None]
            assert [each.name for each in store.list()] == [b"kept"]


def delete_and_replace_while_it_hangs(pool: Pool, object_server: ObjectServer) -> None:
    """All of it acknowledged: by the master's and the node's memory, and by what the node has on its disk."""
    names = ["deleted", "replaced", "kept"]
    with Store(pool.master, namespace="n") as store, ClusterClient(pool.master) as cluster:
        store.put_many([(name, b"old") for name in names])
        wait_for(lambda: store.exists_many(names) == ["present"] * 3)
        heads = [each for name in names for each in store.blocks_of(name)]
        flush(cluster, "object", evict=True)
        wait_for(lambda: all({p.tier for p in at} == {"object"} for at in cluster.locate(heads)))
        object_server.suspend()
        store.delete("deleted")
        store.replace("replaced", b"new")
        assert store.get_many(["deleted", "replaced"]) == [None, b"new"]


def lose_all_memory(pool: Pool) -> None:
    """As when the power fails: disks and the object store are what is left."""
    for daemon in (pool.master_daemon, pool.node):
        assert daemon is not None
        daemon.kill()
    for file in pool.directory.glob("shm/*/*"):
        file.unlink()


def can_stage(cluster: ClusterClient, hashes: list[BlockHash]) -> bool:
    """Some blocks that are in the object store alone. Not by their prefix: a slow store costs a block now and then."""
    best = [replicas[0] for replicas in cluster.locate(hashes) if replicas]
    below = [each for each in best if each.tier == "object"][:5]
    with staged(below, timeout_s=10) as here:
        return len(here) == len(below) > 0


def used_in(cluster: ClusterClient, tier: Tier) -> int | None:
    """Bytes; None until the node has said."""
    tiers = cluster.cache_stat().tiers
    return tiers[tier].used_bytes if tier in tiers else None


def num_in(cluster: ClusterClient, tier: Tier) -> int:
    tiers = cluster.cache_stat().tiers
    return tiers[tier].num_blocks if tier in tiers else 0
