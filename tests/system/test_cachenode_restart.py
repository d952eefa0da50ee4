"""A cache node that is killed, stopped or upgraded has its blocks back: none lost, none torn, none wrong."""

import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
from kit.daemon import Daemon, free_port, wait_for
from kit.models import VOCAB_SIZE, make_tiny_model
from kit.tokens import TokenClient, random_prompt

from daemons.client.store import BlockReader, put_blocks
from daemons.core.errors import McError
from daemons.core.ids import BlockHash, NodeId, new_epoch
from daemons.protocol.block import BadReplica, BlockFilter, BlockLocation, BlockMeta, PutBlock
from daemons.protocol.cache import ClearBlocks, ClearBlocksReply
from daemons.protocol.lookup import Locate, LocateReply
from daemons.protocol.node import ListedNode, ListNodes, ListNodesReply
from daemons.protocol.segment import Source, Strided
from daemons.rpc import SyncClient
from daemons.transfer import TransferEngine, allocate_shared
from mcctl.cluster.plan import ClusterOptions
from mcctl.cluster.processes import LocalCluster

NUM_LAYERS = 4
ROW = 16 * 1024
BLOCK = 2 * NUM_LAYERS * ROW
NUM_SOURCES = 64
"""Blocks in the source's memory; block n has the bytes of n % NUM_SOURCES."""


def name_of(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "big"))


@dataclass
class Pool:
    """A master, one cache node that comes and goes, and memory to put from."""

    directory: Path
    engine: TransferEngine
    node: Daemon = field(init=False)
    master: Daemon = field(init=False)

    def __post_init__(self) -> None:
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.control = f"tcp://127.0.0.1:{free_port()}"
        self.memory = allocate_shared("source", NUM_SOURCES * BLOCK)
        self.memory.array[:] = np.random.default_rng(5).integers(
            0, 256, self.memory.size_bytes, np.uint8
        )
        self.region = self.engine.register(self.memory)
        self.reader = BlockReader(self.engine)
        self.start_master()
        self.start()

    def start_master(self) -> None:
        self.master = Daemon(
            "daemons.mc_master",
            f"node.listen={self.endpoint}",
            f"node.events=tcp://127.0.0.1:{free_port()}",
            "node.metrics=",
            f"node.state_dir={self.directory / 'master'}",
        )

    def spawn(self, *settings: str) -> Daemon:
        return Daemon(
            "daemons.mc_cachenode",
            "node.id=node-a",
            f"node.listen={self.control}",
            "node.metrics=127.0.0.1:0",
            f"master.endpoint={self.endpoint}",
            f"segment.directory={self.directory / 'shm'}",
            f"transfer.unix_dir={self.directory}",
            "segment.size=64MiB",
            *settings,
        )

    def start(self, *settings: str) -> None:
        """And wait until the master has heard of all it holds."""
        self.node = self.spawn(*settings)
        wait_for(lambda: self.node.process.poll() is not None or self.has_announced())
        assert self.node.process.poll() is None, self.node.said()

    def has_announced(self) -> bool:
        found = self.listed()
        if found is None or found.node.pid != self.node.process.pid:
            return False
        blocks = re.search(r"^mc_cachenode_blocks (\S+)", self.metrics(found), re.MULTILINE)
        return blocks is not None and float(blocks[1]) == found.num_blocks

    def listed(self) -> ListedNode | None:
        try:
            with SyncClient(self.endpoint) as client:
                reply = client.request(ListNodes(), 1.0)
        except McError:
            return None
        assert isinstance(reply, ListNodesReply)
        alive = (each for each in reply.nodes if each.state == "alive")
        return next((each for each in alive if each.node.node == "node-a"), None)

    def metrics(self, found: ListedNode) -> str:
        return httpx.get(f"http://{found.node.metrics}/metrics").text

    def lost(self, what: str) -> int:
        found = wait_for(self.listed, what="node-a alive")
        pattern = rf'^mc_cachenode_lost_total{{what="{what}"}} (\S+)'
        line = re.search(pattern, self.metrics(found), re.MULTILINE)
        return int(float(line[1])) if line else 0

    def put(self, numbers: range) -> set[int]:
        """Those that were acknowledged. Raises McError when the node went away."""
        with SyncClient(self.control) as client:
            reply = put_blocks(client, [self.block(number) for number in numbers], timeout_s=5)
        return {n for n, status in zip(numbers, reply.results, strict=True) if status == "stored"}

    def block(self, number: int) -> PutBlock:
        meta = BlockMeta(
            hash=name_of(number),
            parent=name_of(1 << 100),
            namespace=b"restart-test",
            depth=0,
            num_tokens=64,
            model="test",
        )
        ranges = Strided(
            offset=number % NUM_SOURCES * BLOCK,
            row_bytes=ROW,
            num_rows=2 * NUM_LAYERS,
            stride_bytes=ROW,
        )
        return PutBlock(
            meta=meta, source=Source(region=self.region, ranges=ranges), num_layers=NUM_LAYERS
        )

    def payload(self, number: int) -> bytes:
        start = number % NUM_SOURCES * BLOCK
        return self.memory.array[start : start + BLOCK].tobytes()

    def locate(self, numbers: range) -> dict[int, BlockLocation]:
        with SyncClient(self.endpoint) as client:
            reply = client.request(Locate(hashes=[name_of(n) for n in numbers], lease_ms=0))
        assert isinstance(reply, LocateReply)
        return {n: r[0] for n, r in zip(numbers, reply.unpack(), strict=True) if r}

    def check(self, numbers: range) -> set[int]:
        """Every block that can be found has its bytes; which those are."""
        found = self.locate(numbers)
        for number, location in found.items():
            assert self.reader.read_block(location) == self.payload(number), number
        return set(found)

    @property
    def segment_file(self) -> Path:
        return self.directory / "shm" / f"mooncake-{os.getuid()}" / "node-a.segment"

    @property
    def index_file(self) -> Path:
        return self.segment_file.with_suffix(".index")


@pytest.fixture
def pool() -> Iterator[Pool]:
    directory = Path(f"/dev/shm/mct-restart-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    directory.mkdir()
    engine = TransferEngine(epoch=new_epoch(), unix_dir=directory)
    pool = Pool(directory, engine)
    yield pool
    for process in (pool.node, pool.master):
        process.end(signal.SIGKILL)
    engine.close()
    for file in sorted(directory.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    directory.rmdir()


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))


@pytest.mark.parametrize("seed", range(3))
def test_node_killed_in_the_middle_of_puts_has_every_acknowledged_block(
    pool: Pool, seed: int
) -> None:
    """Never so full that one is evicted."""
    rng = random.Random(seed)
    acknowledged: set[int] = set()
    first = 0
    for _ in range(4):
        kill = threading.Timer(rng.uniform(0.01, 0.2), pool.node.process.kill)
        kill.start()
        try:
            for size in (rng.randint(1, 10) for _ in range(9)):
                acknowledged |= pool.put(range(first, first + size))
                first += size
            kill.join()
        except McError:
            first += 10
        pool.node.end()
        pool.start()
        assert not acknowledged - pool.check(range(first))
    assert pool.put(range(first, first + 8)) == set(range(first, first + 8))


@pytest.mark.parametrize("seed", range(2))
def test_full_node_killed_while_it_reuses_slots_serves_no_wrong_byte(pool: Pool, seed: int) -> None:
    rng = random.Random(seed)
    first = 0
    for _ in range(4):
        pool.put(range(first, first + 32))  # on a slow machine none is done before the kill
        first += 32
        kill = threading.Timer(rng.uniform(0.1, 0.5), pool.node.process.kill)
        kill.start()
        try:
            while True:
                pool.put(range(first, first + 32))
                first += 32
        except McError:
            first += 32
        kill.join()
        pool.node.end()
        pool.start()
        assert pool.check(range(first))
        assert pool.lost("block") == 0, "no record spoke of a slot that held something else"
    assert first > 64 * 1024 * 1024 // BLOCK, "no slot was reused"


def test_every_block_is_back_after_stop_and_start_and_new_ones_find_room(pool: Pool) -> None:
    assert pool.put(range(100)) == set(range(100))
    assert pool.node.end() == 0
    assert "segment kept" in pool.node.said()
    assert pool.segment_file.exists()
    assert pool.index_file.exists()
    pool.start()
    assert pool.check(range(100)) == set(range(100))
    assert pool.put(range(50, 150)) == {*range(100, 150)}, "the others are sealed already"
    pool.node.end(signal.SIGKILL)
    pool.start()
    assert pool.check(range(150)) == set(range(150))


def test_what_was_cleared_stays_away(pool: Pool) -> None:
    pool.put(range(20))
    wait_for(lambda: len(pool.locate(range(20))) == 20)
    with SyncClient(pool.endpoint) as client:
        reply = client.request(ClearBlocks(filter=BlockFilter(hash_prefix="0" * 31)))
    assert isinstance(reply, ClearBlocksReply)
    assert (reply.num_cleared, reply.num_left) == (16, 0)
    pool.node.end(signal.SIGKILL)
    pool.start()
    assert pool.check(range(20)) == set(range(16, 20))


def test_what_was_cleared_while_the_node_was_away_does_not_come_back(pool: Pool) -> None:
    pool.put(range(20))
    pool.node.end(signal.SIGKILL)
    with SyncClient(pool.endpoint) as client:
        client.request(ClearBlocks(filter=BlockFilter(hash_prefix="0" * 31)))
    pool.node = pool.spawn()
    wait_for(lambda: len(pool.locate(range(20))) == 4)
    assert pool.put(range(20)) == set(range(16)), "what is put anew is not cleared"
    wait_for(lambda: len(pool.check(range(20))) == 20)
    pool.node.end()
    pool.start()
    assert pool.check(range(20)) == set(range(20))


def test_nodes_tell_a_new_master_what_an_earlier_one_cleared(pool: Pool) -> None:
    """One node is away when all is cleared, and back before the one that remembers it."""
    pool.put(range(20))
    other = pool.spawn("node.id=node-b", "node.listen=tcp://127.0.0.1:0")
    wait_for(lambda: "joined master" in other.said())
    pool.node.end(signal.SIGKILL)
    index = pool.index_file.with_name("node-b.index")
    size = index.stat().st_size
    with SyncClient(pool.endpoint) as client:
        client.request(ClearBlocks(filter=BlockFilter()))
    wait_for(lambda: index.stat().st_size > size)
    other.end(signal.SIGKILL)
    pool.master.end(signal.SIGKILL)
    pool.start_master()
    pool.start()
    assert len(pool.locate(range(20))) == 20, "nobody is there who knows better"
    other = pool.spawn("node.id=node-b", "node.listen=tcp://127.0.0.1:0")
    try:
        wait_for(lambda: not pool.locate(range(20)))
        wait_for(lambda: pool.index_file.read_bytes().count(name_of(7)) > 1)
        pool.node.end(signal.SIGKILL)
        pool.start()
        assert pool.check(range(20)) == set()
    finally:
        other.end()


def test_flipped_bytes_of_the_segment_are_never_served(pool: Pool) -> None:
    pool.put(range(10))
    wait_for(lambda: len(pool.locate(range(10))) == 10)
    found = pool.locate(range(10))
    pool.node.end(signal.SIGKILL)
    flip(pool.segment_file, found[3].offset + found[3].length + 60)  # the trailer
    flip(pool.segment_file, found[7].offset + 2 * ROW + 5)  # a layer
    pool.start()
    assert pool.lost("block") == 1
    found = pool.locate(range(10))
    assert found.keys() == set(range(10)) - {3}
    assert pool.reader.read_block(found[7]) is None
    with SyncClient(pool.endpoint) as client:
        client.request(BadReplica(hash=name_of(7), node=NodeId("node-a"), why="test"))
    wait_for(lambda: 7 not in pool.locate(range(10)))
    assert pool.put(range(3, 4)) == {3}
    # The master hides it at once, the node drops it when it has looked for itself.
    wait_for(lambda: pool.put(range(10)) == {7})
    wait_for(lambda: len(pool.locate(range(10))) == 10)
    assert len(pool.check(range(10))) == 10


def test_damaged_index_costs_what_is_damaged_and_says_so(pool: Pool) -> None:
    pool.put(range(40))
    pool.node.end(signal.SIGKILL)
    data = pool.index_file.read_bytes()
    record = len(data) // 41
    *_, last = sorted(range(40), key=lambda number: data.index(name_of(number)))
    flipped = 5 if last != 5 else 6
    flip(pool.index_file, data.index(name_of(flipped)) + 15)
    with pool.index_file.open("r+b") as file:
        file.truncate(len(data) - record // 2)
    pool.start()
    assert pool.check(range(40)) == set(range(40)) - {flipped, last}
    assert (pool.lost("record"), pool.lost("tail")) == (1, 1)
    assert "index records passed over" in pool.node.said()
    assert "index cut" in pool.node.said()
    pool.node.end()
    pool.index_file.write_bytes(b"not an index")
    pool.start()
    assert pool.check(range(40)) == set()
    assert pool.lost("index") == 1
    assert pool.put(range(40)) == set(range(40))


def test_other_size_starts_empty_and_says_why(pool: Pool) -> None:
    pool.put(range(10))
    pool.node.end()
    pool.start("segment.size=32MiB")
    assert pool.check(range(10)) == set()
    assert "segment starts empty" in pool.node.said()
    assert "it has 64.0 MiB and is now to have 32.0 MiB" in pool.node.said()
    assert pool.put(range(10)) == set(range(10))


def test_two_nodes_of_one_name_do_not_share_a_segment(pool: Pool) -> None:
    pool.put(range(10))
    for keep in ("true", "false"):
        late = pool.spawn("node.listen=tcp://127.0.0.1:0", f"segment.keep={keep}")
        assert late.process.wait(20) == 78
        late.end()
        assert re.search(r"is held by .*; give each node its own segment path", late.said())
    pool.node.end(signal.SIGKILL)
    pool.start()
    assert pool.check(range(10)) == set(range(10)), "the second one touched the first one's index"


def test_nothing_is_left_where_nothing_is_to_be_kept(pool: Pool) -> None:
    pool.node.end()
    pool.start("segment.keep=false")
    assert pool.put(range(10)) == set(range(10))
    assert not pool.index_file.exists()
    pool.node.end()
    assert not pool.segment_file.exists()
    pool.start()
    assert pool.check(range(10)) == set()


def test_new_master_and_new_node_hear_of_everything(pool: Pool) -> None:
    pool.put(range(30))
    pool.master.end(signal.SIGKILL)
    pool.node.end(signal.SIGKILL)
    pool.start_master()
    pool.start()
    assert pool.check(range(30)) == set(range(30))


def test_cluster_that_was_stopped_and_started_reuses_what_it_had(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny", "llama")
    kept = Path(f"/dev/shm/mct-kept-{os.getpid()}")
    options = ClusterOptions(
        model=model,
        dtype="float32",
        kv_memory="16MiB",
        segment="16MiB",
        segment_directory=kept,
    )
    prompt = random_prompt(3, 512, VOCAB_SIZE)
    try:
        with LocalCluster.temporary(options) as cluster, TokenClient(cluster.master) as client:
            first = client.generate(prompt, 4)
            wait_for(lambda: client.generate(prompt, 4).num_reused > 0)
        with LocalCluster.temporary(options) as cluster, TokenClient(cluster.master) as client:
            again = client.generate(prompt, 4)
        assert again.tokens == first.tokens
        assert again.num_reused > 0
    finally:
        for file in sorted(kept.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        kept.rmdir()
