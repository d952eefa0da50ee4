"""A cache node with an object store: what it writes there outlives its DRAM, its SSD and itself."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from kit.lower_tiers import flush, put_all, read_in_pieces
from kit.object_server import ObjectServer, object_server
from kit.pool import SourceMemory, chain, running_pool, short_directory, sources

from daemons.client.cluster import ClusterClient

NUM_BLOCKS = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("swift")) as running:
        yield running


@pytest.fixture
def bucket(server: ObjectServer, request: pytest.FixtureRequest) -> str:
    name = f"blocks-{abs(hash(request.node.name)) % 10**8}"
    server.make_bucket(name)
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
def settings(server: ObjectServer, bucket: str) -> list[str]:
    return [
        "segment.size=16MiB",
        *server.settings(bucket),
        "object.capacity=64MiB",
        "object.part=4MiB",
        "object.timeout_s=1",
    ]


def test_blocks_outlive_dram_and_ssd(
    directory: Path, make_source: Callable[..., SourceMemory], settings: list[str], tmp_path: Path
) -> None:
    """The machine is gone with its disks; another one takes its place."""
    source, hashes = make_source(NUM_BLOCKS), chain(NUM_BLOCKS)
    with_ssd = [*settings, "ssd.capacity=64MiB", "ssd.bucket=4MiB"]
    with running_pool(directory, settings=[*with_ssd, f"ssd.directory={tmp_path / 'a'}"]) as pool:
        put_all(pool, source, hashes)
        pool.wait_until_sealed(hashes)
        with ClusterClient(pool.master) as cluster:
            assert flush(cluster, "object", evict=True).num_done == NUM_BLOCKS
        pool.node.process.kill()
        pool.node.process.wait()
        for file in directory.glob("shm/*/*"):
            file.unlink()
        pool.restart_node(*with_ssd, f"ssd.directory={tmp_path / 'b'}")
        locations = pool.wait_until_sealed(hashes)
        assert {location.tier for location in locations} == {"object"}
        assert np.array_equal(read_in_pieces(source, locations), source.array)
