"""Objects by name where blocks are usually meant: pinned, on more hosts, on another node; each a domain of its own."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kit.daemon import wait_for
from kit.pool import short_directory
from kit.replicated_pool import ReplicatedPool

from daemons.client.cluster import ClusterClient
from daemons.client.objects.store import Store
from daemons.core.errors import NotFound
from daemons.core.ids import NodeId
from daemons.protocol.block import BlockFilter

VALUE = np.random.default_rng(5).integers(0, 256, 3_000_000, np.uint8).tobytes()
"""Several chunks: a quarter of a slab each at most."""


@pytest.fixture(scope="module")
def pool() -> Iterator[ReplicatedPool]:
    with short_directory() as directory:
        made = ReplicatedPool(directory, 2, "pool.lease_s=0.3")
        try:
            yield made
        finally:
            made.close()


def nodes_of(store: Store, client: ClusterClient, name: str) -> list[set[NodeId]]:
    return [{at.node for at in of_block} for of_block in client.locate(store.blocks_of(name))]


def test_a_named_object_is_replicated_moved_and_pinned_with_all_its_chunks(
    pool: ReplicatedPool,
) -> None:
    with Store(pool.endpoint, namespace="places") as store:
        store.put("a", VALUE)
        blocks = store.blocks_of("a")
        assert len(blocks) > 1
        wait_for(lambda: all(nodes_of(store, pool.client, "a")), 20, "reported")
        store.replicate("a", 2)
        wait_for(lambda: store.replicate("a", 2) == 0, 15, "two replicas of each chunk")
        assert all(len(nodes) == 2 for nodes in nodes_of(store, pool.client, "a"))
        store.put("b", VALUE[::-1])
        target = [{NodeId("n1")}] * len(blocks)
        wait_for(lambda: all(nodes_of(store, pool.client, "b")), 20, "reported")
        wait_for(
            lambda: (
                store.move("b", NodeId("n1")) == 0 and nodes_of(store, pool.client, "b") == target
            ),
            15,
            "moved, and free elsewhere",
        )
        assert store.get("b") == VALUE[::-1]
        store.pin("a", ttl_s=60, is_hard=True)
        listed = pool.client.blocks(BlockFilter(hashes=tuple(blocks)))
        assert {block.pin for block in listed} == {"hard"}
        store.unpin("a")
        listed = pool.client.blocks(BlockFilter(hashes=tuple(blocks)))
        assert {block.pin for block in listed} == {"none"}
        with pytest.raises(NotFound, match="no object"):
            store.pin("nobody")


def test_the_command_line_takes_names_with_a_namespace(
    pool: ReplicatedPool, tmp_path: Path
) -> None:
    file = tmp_path / "value"
    file.write_bytes(VALUE)

    def mcctl(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mcctl", "--endpoint", pool.endpoint, "cache", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert mcctl("put", "a", str(file), "--namespace", "cli").returncode == 0
    assert mcctl("pin", "a", "--namespace", "cli", "--hard").returncode == 0
    replicated = mcctl("replicate", "a", "--namespace", "cli", "--count", "2", "--wait")
    assert replicated.returncode == 0, replicated.stderr
    moved = mcctl("move", "a", "--namespace", "cli", "--to", "n0", "--wait")
    assert moved.returncode == 0, moved.stderr
    assert mcctl("unpin", "a", "--namespace", "cli").returncode == 0
    missing = mcctl("pin", "b", "--namespace", "cli")
    assert missing.returncode == 3
    assert "no object" in missing.stderr
