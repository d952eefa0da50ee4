"""A real mc-cachenode with a real mc-master: blocks put from this process and others, read back, verified."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import xxhash

from daemons.client.store import BlockReader, put_blocks
from daemons.core.errors import McError, Unavailable
from daemons.core.ids import BlockHash, NodeId, new_epoch, new_put_id
from daemons.protocol.block import (
    BadReplica,
    BlockLocation,
    BlockMeta,
    CacheStat,
    CacheStatReply,
    Match,
    MatchReply,
    Put,
    PutBlock,
    PutReply,
)
from daemons.protocol.node import ListNodes, ListNodesReply
from daemons.protocol.prefix_hash import block_hashes, root_hash
from daemons.protocol.segment import RegionRef, Source, Strided
from daemons.rpc import SyncClient
from daemons.store.seal import layer_checksums
from daemons.transfer import ByteArray, GenerationTable, TransferEngine, allocate_shared

NAMESPACE = b"cachenode-test--"
NUM_LAYERS = 6
ROW = 24 * 1024
BLOCK = 2 * NUM_LAYERS * ROW


def wait_for(is_true: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline_s, "timed out"
        time.sleep(0.01)


class Daemon:
    """A real process; its stderr is kept for what a test wants to know."""

    def __init__(self, module: str, *settings: str) -> None:
        arguments = [argument for setting in settings for argument in ("--set", setting)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def find(self, pattern: str) -> str:
        def search() -> list[str]:
            return [m[1] for line in list(self.lines) if (m := re.search(pattern, line))]

        wait_for(lambda: bool(search()) or self.process.poll() is not None)
        assert search(), "".join(self.lines)
        return search()[-1]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Pool:
    """A master and one cache node."""

    node: Daemon
    control: str
    master: str
    directory: Path

    def match(self, hashes: list[BlockHash]) -> list[BlockLocation]:
        with SyncClient(self.master) as client:
            reply = client.request(Match(hashes=hashes))
        assert isinstance(reply, MatchReply)
        return reply.locations

    def wait_until_sealed(self, hashes: list[BlockHash]) -> list[BlockLocation]:
        wait_for(lambda: len(self.match(hashes)) == len(hashes))
        return self.match(hashes)

    def put(self, blocks: list[PutBlock]) -> PutReply:
        with SyncClient(self.control) as client:
            return put_blocks(client, blocks)

    @property
    def segment_file(self) -> Path:
        return next(self.directory.glob("shm/*/*.segment"))


def start_node(directory: Path, master: str, *settings: str) -> Daemon:
    return Daemon(
        "daemons.mc_cachenode",
        "node.id=node-a",
        "node.listen=tcp://127.0.0.1:0",
        "node.metrics=127.0.0.1:0",
        f"master.endpoint={master}",
        f"segment.directory={directory / 'shm'}",
        f"transfer.unix_dir={directory}",
        "segment.size=64MiB",
        *settings,
    )


@pytest.fixture()
def directory() -> Iterator[Path]:
    """On a tmpfs, and short enough for UNIX sockets."""
    path = Path(f"/dev/shm/mct-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    path.mkdir()
    yield path
    for file in sorted(path.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    path.rmdir()


@pytest.fixture()
def pool(directory: Path) -> Iterator[Pool]:
    port = free_port()
    master = Daemon(
        "daemons.mc_master",
        f"node.listen=tcp://127.0.0.1:{port}",
        f"node.events=tcp://127.0.0.1:{free_port()}",
        "node.metrics=",
        f"node.state_dir={directory / 'master'}",
    )
    node = start_node(directory, f"tcp://127.0.0.1:{port}")
    try:
        control = node.find(r"ready .*control=(\S+)")
        yield Pool(node, control, f"tcp://127.0.0.1:{port}", directory)
    finally:
        node.stop()
        master.stop()


@pytest.fixture()
def lonely(directory: Path) -> Iterator[Pool]:
    """A node whose master does not exist, and who waits long before it evicts by itself."""
    node = start_node(directory, f"tcp://127.0.0.1:{free_port()}", "report.orphan_after_s=3600")
    try:
        yield Pool(node, node.find(r"ready .*control=(\S+)"), "", directory)
    finally:
        node.stop()


@dataclass
class SourceMemory:
    """An arena `[layer][k|v][block]` like an engine's: rows of one block are strided."""

    engine: TransferEngine
    region: RegionRef
    generations: GenerationTable
    array: ByteArray
    num_blocks: int

    def block(self, index: int, hashes: list[BlockHash], with_checksums: bool = False) -> PutBlock:
        return PutBlock(
            meta=BlockMeta(
                hash=hashes[index],
                parent=hashes[index - 1] if index else root_hash(NAMESPACE),
                namespace=NAMESPACE,
                depth=index,
                num_tokens=64,
                model="test",
            ),
            source=Source(
                region=self.region,
                ranges=Strided(
                    offset=index * ROW,
                    row_bytes=ROW,
                    num_rows=2 * NUM_LAYERS,
                    stride_bytes=self.num_blocks * ROW,
                ),
                generation=self.generations.guard(0),
            ),
            num_layers=NUM_LAYERS,
            checksums=layer_checksums(memoryview(self.payload(index)), NUM_LAYERS)
            if with_checksums
            else None,
        )

    def payload(self, index: int) -> bytes:
        rows = self.array.reshape(2 * NUM_LAYERS, self.num_blocks, ROW)
        return rows[:, index].tobytes()


@pytest.fixture()
def make_source(directory: Path) -> Iterator[Callable[..., SourceMemory]]:
    engines: list[TransferEngine] = []

    def make(num_blocks: int, transports: tuple[str, ...] = ("shm", "tcp")) -> SourceMemory:
        engine = TransferEngine(epoch=new_epoch(), unix_dir=directory, transports=transports)
        engines.append(engine)
        memory = allocate_shared("source", num_blocks * BLOCK)
        memory.array[:] = np.random.default_rng(7).integers(0, 256, memory.size_bytes, np.uint8)
        region = engine.register(memory)
        return SourceMemory(engine, region, GenerationTable(engine, 4), memory.array, num_blocks)

    yield make
    for engine in engines:
        engine.close()


def chain(num_blocks: int, seed: int = 0) -> list[BlockHash]:
    return block_hashes(NAMESPACE, range(seed, seed + 16 * num_blocks), 16)


def read_all(
    engine: TransferEngine, locations: list[BlockLocation]
) -> tuple[int, ByteArray, list[tuple[BlockLocation, str]]]:
    """(good blocks, bytes `[layer][k|v][block][row]`, bad replicas)."""
    opened = BlockReader(engine).open(locations)
    count = len(locations)
    arena = np.zeros((2 * NUM_LAYERS, count * ROW), np.uint8)
    for layer in range(NUM_LAYERS):
        opened.read_layer(layer, arena[2 * layer], arena[2 * layer + 1])
    return opened.num_good, arena.reshape(-1), opened.bad


@pytest.mark.parametrize("transports", [("shm", "tcp"), ("tcp",)])
def test_blocks_come_back_as_they_were_put(
    pool: Pool, make_source: Callable[..., SourceMemory], transports: tuple[str, ...]
) -> None:
    source, hashes = make_source(12, transports), chain(12)
    reply = pool.put([source.block(i, hashes, with_checksums=True) for i in range(12)])
    assert reply.results == ["stored"] * 12, reply.why
    locations = pool.wait_until_sealed(hashes)
    num_good, read, bad = read_all(source.engine, locations)
    assert (num_good, bad) == (12, [])
    assert np.array_equal(read, source.array)
    assert BlockReader(source.engine).read_block(locations[3]) == source.payload(3)
