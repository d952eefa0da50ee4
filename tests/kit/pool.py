"""A real mc-master and mc-cachenode as processes, and memory of this process that they can pull blocks from."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daemons.client.store import BlockReader, put_blocks
from daemons.core.ids import BlockHash, new_epoch
from daemons.protocol.block import BlockLocation, BlockMeta, PutBlock, PutReply
from daemons.protocol.lookup import Match, MatchReply
from daemons.protocol.prefix_hash import block_hashes, root_hash
from daemons.protocol.segment import RegionRef, Source, Strided
from daemons.rpc import SyncClient
from daemons.store.segment.seal import layer_checksums
from daemons.transfer import ByteArray, GenerationTable, TransferEngine, allocate_shared
from kit.daemon import Daemon, free_port, wait_for

NAMESPACE = b"cachenode-test--"
NUM_LAYERS = 6
ROW = 24 * 1024
BLOCK = 2 * NUM_LAYERS * ROW


@dataclass
class Pool:
    """A master and one cache node."""

    node: Daemon
    control: str
    master: str
    directory: Path
    master_daemon: Daemon | None = None

    def match(self, hashes: list[BlockHash]) -> list[BlockLocation]:
        with SyncClient(self.master) as client:
            reply = client.request(Match(hashes=hashes))
        assert isinstance(reply, MatchReply)
        return reply.locations.unpack()

    def wait_until_sealed(self, hashes: list[BlockHash]) -> list[BlockLocation]:
        wait_for(lambda: len(self.match(hashes)) == len(hashes))
        return self.match(hashes)

    def put(self, blocks: list[PutBlock]) -> PutReply:
        with SyncClient(self.control) as client:
            return put_blocks(client, blocks)

    def restart_node(self, *settings: str) -> None:
        """After it ended in whatever way; returns when it has joined."""
        self.node.stop()
        self.node = start_node(self.directory, self.master, *settings)
        self.control = self.node.find(r"ready .*control=(\S+)")
        self.node.find(r"(joined master)")

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


@contextmanager
def short_directory() -> Iterator[Path]:
    """On a tmpfs, and short enough for UNIX sockets."""
    path = Path(tempfile.mkdtemp(prefix="mct-", dir="/dev/shm"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def sources(directory: Path) -> Iterator[Callable[..., "SourceMemory"]]:
    """Makes sources; their engines end with the block."""
    engines: list[TransferEngine] = []

    def make(num_blocks: int, transports: tuple[str, ...] = ("shm", "tcp")) -> SourceMemory:
        engine = TransferEngine(epoch=new_epoch(), unix_dir=directory, transports=transports)
        engines.append(engine)
        memory = allocate_shared("source", num_blocks * BLOCK)
        memory.array[:] = np.random.default_rng(7).integers(0, 256, memory.size_bytes, np.uint8)
        region = engine.register(memory)
        return SourceMemory(engine, region, GenerationTable(engine, 4), memory.array, num_blocks)

    try:
        yield make
    finally:
        for engine in engines:
            engine.close()


@contextmanager
def running_pool(
    directory: Path, secret_file: str = "", settings: Sequence[str] = ()
) -> Iterator[Pool]:
    """`settings` are of the node."""
    port = free_port()
    master = Daemon(
        "daemons.mc_master",
        f"node.listen=tcp://127.0.0.1:{port}",
        f"node.events=tcp://127.0.0.1:{free_port()}",
        "node.metrics=",
        f"node.state_dir={directory / 'master'}",
        f"access.secret_file={secret_file}",
    )
    settings = (f"transfer.secret_file={secret_file}", *settings)
    node = start_node(directory, f"tcp://127.0.0.1:{port}", *settings)
    pool = Pool(node, "", f"tcp://127.0.0.1:{port}", directory, master)
    try:
        pool.control = node.find(r"ready .*control=(\S+)")
        master.find(r"(ready)")
        node.find(r"(joined master)")
        yield pool
    finally:
        pool.node.stop()  # which the test may have started again
        master.stop()


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
        opened.read_layers(layer, [(arena[2 * layer], arena[2 * layer + 1])], opened.num_good)
    return opened.num_good, arena.reshape(-1), opened.bad
