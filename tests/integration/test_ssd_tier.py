"""A cache node with an SSD: what leaves DRAM is found on disk, comes back to readers, and outlives every stop."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from kit.daemon import wait_for
from kit.lower_tiers import damage, flush, put_all, read_in_pieces
from kit.pool import (
    Pool,
    SourceMemory,
    chain,
    running_pool,
    short_directory,
    sources,
)

from daemons.client.cluster import ClusterClient
from daemons.client.staging import staged
from daemons.client.store import BlockReader
from daemons.core.errors import Unavailable
from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.block import BlockFilter
from daemons.protocol.cache import FlushBlocksReply
from mcctl.cache import flush as flush_module
from mcctl.cache.flush import FlushPlan

NUM_BLOCKS = 70
"""Of which a segment of 8 MiB holds 28."""


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def make_source(directory: Path) -> Iterator[Callable[..., SourceMemory]]:
    with sources(directory) as make:
        yield make


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    return [
        "segment.size=8MiB",
        f"ssd.directory={tmp_path}",
        "ssd.capacity=64MiB",
        "ssd.bucket=4MiB",
    ]


def tiers_of(pool: Pool, hashes: list[BlockHash]) -> list[str]:
    return [location.tier for location in pool.match(hashes)]


def test_blocks_that_dram_cannot_hold_are_read_from_the_ssd(
    directory: Path, make_source: Callable[..., SourceMemory], settings: list[str]
) -> None:
    source, hashes = make_source(NUM_BLOCKS), chain(NUM_BLOCKS)
    with running_pool(directory, settings=settings) as pool:
        put_all(pool, source, hashes)
        locations = pool.wait_until_sealed(hashes)
        assert {location.tier for location in locations} == {"dram", "ssd"}
        assert np.array_equal(read_in_pieces(source, pool, hashes), source.array)
        with ClusterClient(pool.master) as cluster:
            stat = cluster.cache_stat()
            assert stat.tiers["ssd"].num_blocks >= NUM_BLOCKS - 28
            assert stat.num_blocks == NUM_BLOCKS
            (node,) = (each for each in cluster.nodes().nodes if each.tiers)
            assert node.tiers == stat.tiers


@pytest.mark.parametrize("is_killed", [True, False])
def test_the_ssd_outlives_the_process_and_the_segment(
    directory: Path,
    make_source: Callable[..., SourceMemory],
    settings: list[str],
    is_killed: bool,
) -> None:
    """The segment's file goes too, as after a reboot."""
    source, hashes = make_source(NUM_BLOCKS), chain(NUM_BLOCKS)
    settings = [*settings, "ssd.flush=write-through"]
    with running_pool(directory, settings=settings) as pool:
        put_all(pool, source, hashes)
        with ClusterClient(pool.master) as cluster:
            wait_for(lambda: _num_on_ssd(cluster) == NUM_BLOCKS)
        if is_killed:
            pool.node.process.kill()
            pool.node.process.wait()
        else:
            pool.node.stop()
        for file in directory.glob("shm/*/*"):
            file.unlink()
        pool.restart_node(*settings)
        locations = pool.wait_until_sealed(hashes)
        assert {location.tier for location in locations} == {"ssd"}
        assert np.array_equal(read_in_pieces(source, pool, hashes), source.array)


def test_a_block_that_is_read_often_stays_in_dram(
    directory: Path, make_source: Callable[..., SourceMemory], settings: list[str]
) -> None:
    source, hashes = make_source(NUM_BLOCKS), chain(NUM_BLOCKS)
    with running_pool(directory, settings=settings) as pool:
        put_all(pool, source, hashes)
        locations = pool.wait_until_sealed(hashes)
        below = [location for location in locations if location.tier == "ssd"][-2:]
        for _ in range(3):
            with staged(below, timeout_s=10) as here:
                assert len(here) == len(below)
                assert {location.tier for location in here} == {"dram"}
        wait_for(lambda: pool.match([below[0].hash])[0].tier == "dram")


def test_a_clear_deletes_in_all_tiers_and_for_good(
    directory: Path, make_source: Callable[..., SourceMemory], settings: list[str]
) -> None:
    source, hashes = make_source(NUM_BLOCKS), chain(NUM_BLOCKS)
    with running_pool(directory, settings=settings) as pool:
        put_all(pool, source, hashes)
        pool.wait_until_sealed(hashes)
        with ClusterClient(pool.master) as cluster:
            reply = cluster.clear_blocks(BlockFilter())
            assert (reply.num_cleared, reply.num_left) == (NUM_BLOCKS, 0)
            assert cluster.cache_stat().num_blocks == 0
            pool.node.process.kill()
            pool.node.process.wait()
            pool.restart_node(*settings)
            assert cluster.cache_stat().num_blocks == 0
        assert pool.match(hashes) == []


def test_flush_writes_what_dram_holds_and_evict_frees_it_there(
    directory: Path, make_source: Callable[..., SourceMemory], settings: list[str]
) -> None:
    source, hashes = make_source(20), chain(20)
    with running_pool(directory, settings=[*settings, "ssd.flush=manual"]) as pool:
        put_all(pool, source, hashes)
        pool.wait_until_sealed(hashes)
        with ClusterClient(pool.master) as cluster:
            assert _num_on_ssd(cluster) == 0
            assert flush(cluster, evict=False).num_done == 20
            assert set(tiers_of(pool, hashes)) == {"dram"}
            assert flush(cluster, evict=True).num_done == 20
            assert set(tiers_of(pool, hashes)) == {"ssd"}
        assert np.array_equal(read_in_pieces(source, pool, hashes), source.array)


def test_a_flush_that_does_not_fit_stops_and_what_is_left_stays_in_dram(
    directory: Path,
    make_source: Callable[..., SourceMemory],
    settings: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, hashes = make_source(NUM_BLOCKS), chain(NUM_BLOCKS)
    settings = [*settings, "segment.size=32MiB", "ssd.capacity=16MiB", "ssd.flush=manual"]
    with running_pool(directory, settings=settings) as pool, ClusterClient(pool.master) as cluster:
        put_all(pool, source, hashes)
        pool.wait_until_sealed(hashes)
        plan = FlushPlan(BlockFilter(), "ssd", evict=True)

        def ask() -> FlushBlocksReply:
            return cluster.flush_blocks(plan.chosen, to=plan.to, evict=plan.evict)

        wait_for(lambda: ask() and "flush stopped tier=the SSD" in pool.node.said())
        wait_for(lambda: (r := ask()).num_done and r.num_done + r.num_left == NUM_BLOCKS)
        reply = ask()
        assert 0 < reply.num_done < NUM_BLOCKS
        assert reply.left_by_node == {NodeId("node-a"): reply.num_left}
        monkeypatch.setattr(flush_module, "_STUCK_S", 0.3)
        with pytest.raises(Unavailable, match=r" on node-a \(alive, ssd .* raise ssd.capacity"):
            flush_module.wait(cluster, plan, lambda _: None)
        assert len(pool.match(hashes)) == NUM_BLOCKS
        assert np.array_equal(read_in_pieces(source, pool, hashes), source.array)


def test_bytes_that_the_disk_changed_are_a_miss_and_are_dropped(
    directory: Path, make_source: Callable[..., SourceMemory], settings: list[str], tmp_path: Path
) -> None:
    source, hashes = make_source(20), chain(20)
    with running_pool(directory, settings=settings) as pool:
        put_all(pool, source, hashes)
        pool.wait_until_sealed(hashes)
        with ClusterClient(pool.master) as cluster:
            flush(cluster, evict=True)
            locations = pool.match(hashes)
            assert len(locations) == 20
            damage(tmp_path)
            with staged(locations[:5], timeout_s=10) as here:
                assert here == []
            wait_for(lambda: cluster.cache_stat().num_blocks < 20)
        assert pool.match(hashes) == []


def _num_on_ssd(cluster: ClusterClient) -> int:
    tiers = cluster.cache_stat().tiers
    return tiers["ssd"].num_blocks if "ssd" in tiers else 0


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem with room for one bucket."""
    path = tmp_path / "full"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if mounted.returncode:
        pytest.skip(f"needs a small filesystem: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], timeout=10, check=True)


def test_a_full_disk_costs_misses_only(
    directory: Path,
    make_source: Callable[..., SourceMemory],
    settings: list[str],
    full_disk: Path,
) -> None:
    source, hashes = make_source(NUM_BLOCKS), chain(NUM_BLOCKS)
    settings = [*settings, f"ssd.directory={full_disk}"]
    with running_pool(directory, settings=settings) as pool, ClusterClient(pool.master) as cluster:
        put_all(pool, source, hashes)
        wait_for(lambda: any(cluster.locate(hashes)))
        found = [replicas[0] for replicas in cluster.locate(hashes) if replicas]
        assert len(found) < NUM_BLOCKS, "there is no room for all of them"
        for location in found:
            payload = source.payload(hashes.index(location.hash))
            with staged([location], timeout_s=5) as here:
                read = [BlockReader(source.engine).read_block(at) for at in here]
            assert read in ([], [None], [payload])
