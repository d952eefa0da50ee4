"""Whole processes that know no way but RDMA: a master, a cache node, and this one, which puts blocks and gets them."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from kit.daemon import free_port
from vm.conftest import Nursery
from vm.measured import report

from daemons.client.cluster import ClusterClient
from daemons.client.store import BlockReader, put_blocks
from daemons.core.errors import McError
from daemons.core.ids import BlockHash
from daemons.protocol.block import BlockMeta, PutBlock
from daemons.protocol.node import NodeDescription
from daemons.protocol.prefix_hash import block_hashes, root_hash
from daemons.protocol.segment import RegionRef, Source, Strided
from daemons.rpc import SyncClient
from daemons.transfer import GenerationTable, TransferEngine

NAMESPACE = b"rdma-in-the-vm--"
NUM_BLOCKS, NUM_LAYERS, ROW_BYTES = 8, 4, 16 << 10
BLOCK_BYTES = 2 * NUM_LAYERS * ROW_BYTES
TIMEOUT_S = 120.0


@contextmanager
def daemon(module: str, *settings: str) -> Iterator[None]:
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    process = subprocess.Popen([sys.executable, "-m", module, *arguments])
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with daemon(
        "daemons.mc_master",
        f"node.listen={endpoint}",
        f"node.events=tcp://127.0.0.1:{free_port()}",
        "node.metrics=",
        f"node.state_dir={tmp_path / 'master'}",
    ):
        yield endpoint


@pytest.fixture
def node(tmp_path: Path, master: str) -> Iterator[NodeDescription]:
    with daemon(
        "daemons.mc_cachenode",
        f"master.endpoint={master}",
        "node.id=node-a",
        f"node.listen=tcp://127.0.0.1:{free_port()}",
        "node.metrics=",
        f"segment.directory={tmp_path}",
        "segment.size=8MiB",
        'transfer.transports=["rdma"]',
        "transfer.timeout_s=60",
    ):
        yield wait_for_node(master)


def wait_for_node(master: str) -> NodeDescription:
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            with ClusterClient(master, 10.0) as client:
                for listed in client.nodes().nodes:
                    return listed.node
        except McError:
            continue
        time.sleep(0.2)
    raise AssertionError("no cache node joined the master")


def offered(
    region: RegionRef, generations: GenerationTable, hashes: Sequence[BlockHash]
) -> list[PutBlock]:
    """As in an engine's arena, the rows of one block lie apart."""
    return [
        PutBlock(
            meta=BlockMeta(
                hash=hashes[index],
                parent=hashes[index - 1] if index else root_hash(NAMESPACE),
                namespace=NAMESPACE,
                depth=index,
                num_tokens=16,
                model="test",
            ),
            source=Source(
                region=region,
                ranges=Strided(
                    offset=index * ROW_BYTES,
                    row_bytes=ROW_BYTES,
                    num_rows=2 * NUM_LAYERS,
                    stride_bytes=NUM_BLOCKS * ROW_BYTES,
                ),
                generation=generations.guard(0),
            ),
            num_layers=NUM_LAYERS,
        )
        for index in range(NUM_BLOCKS)
    ]


def num_packets() -> int:
    """Sent by the Soft-RoCE devices."""
    counters = Path("/sys/class/infiniband").glob("rxe*/ports/1/hw_counters/sent_pkts")
    return sum(int(counter.read_text()) for counter in counters)


def test_blocks_go_into_a_cache_node_and_come_back_over_rdma_alone(
    nursery: Nursery, master: str, node: NodeDescription
) -> None:
    assert nursery
    assert node.data is not None
    assert (bool(node.data.rdma), node.data.tcp, node.data.unix_path) == (True, "", "")
    engine = TransferEngine(transports=("rdma",))
    try:
        memory = np.random.default_rng(5).integers(0, 256, NUM_BLOCKS * BLOCK_BYTES, np.uint8)
        region, generations = engine.register(memory), GenerationTable(engine, 1)
        hashes = block_hashes(NAMESPACE, range(16 * NUM_BLOCKS), 16)
        blocks = offered(region, generations, hashes)
        before = num_packets()
        started_s = time.monotonic()
        with SyncClient(node.control) as client:
            reply = put_blocks(client, blocks, timeout_s=TIMEOUT_S)
        assert reply.results == ["stored"] * NUM_BLOCKS, reply.why
        put_s = time.monotonic() - started_s
        with ClusterClient(master, TIMEOUT_S) as cluster:
            deadline_s = time.monotonic() + TIMEOUT_S
            while not all(replicas := cluster.locate(hashes)):
                assert time.monotonic() < deadline_s, "the node reports what it stored"
                time.sleep(0.1)
        rows = memory.reshape(2 * NUM_LAYERS, NUM_BLOCKS, ROW_BYTES)
        reader = BlockReader(engine)
        started_s = time.monotonic()
        for index, (location, *_) in enumerate(replicas):
            assert location.region.address == node.data
            read = reader.read_block(location, timeout_s=TIMEOUT_S)
            assert read == rows[:, index].tobytes()
        get_s = time.monotonic() - started_s
        num_sent = num_packets() - before
        # 4 KiB at most go into one packet.
        assert num_sent >= 2 * memory.size // 4096
        report(
            f"cache node over rdma alone: {memory.size >> 10} KiB put in {put_s:.2f} s, "
            f"got in {get_s:.2f} s, {num_sent} packets"
        )
        generations.close()
    finally:
        engine.close()
