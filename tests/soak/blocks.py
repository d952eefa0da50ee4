"""A thread that fills the pool with KV blocks until it evicts, and reads old ones back from whatever tier has them."""

import random
import threading
from collections import Counter
from pathlib import Path

import numpy as np

from daemons.client.cluster import ClusterClient
from daemons.client.staging import staged
from daemons.client.store import BlockReader, put_blocks
from daemons.core.errors import McError
from daemons.core.ids import BlockHash, new_epoch
from daemons.protocol.block import BlockLocation, BlockMeta, PutBlock
from daemons.protocol.prefix_hash import block_hashes, root_hash
from daemons.protocol.segment import Source, Strided
from daemons.rpc import SyncClient
from daemons.transfer import TransferEngine

_NAMESPACE = b"soak-blocks-----"
_NUM_LAYERS, _ROW = 4, 16 * 1024
_BLOCK = 2 * _NUM_LAYERS * _ROW
_TOKENS = 16
_CHAIN = 8
_MAX_CHAINS = 400


class BlockClient(threading.Thread):
    """A miss is always fine, a wrong byte never."""

    def __init__(self, master: str, seed: int, directory: Path) -> None:
        super().__init__(name=f"soak-blocks-{seed}", daemon=True)
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.ends = threading.Event()
        self._master = master
        self._random = random.Random(seed)  # repeatable, not secret
        self._directory = directory
        self._chains: list[int] = []

    def run(self) -> None:
        with (
            TransferEngine(
                epoch=new_epoch(), unix_dir=self._directory, transports=("shm", "tcp")
            ) as engine,
            ClusterClient(self._master, 2.0) as cluster,
        ):
            while not self.ends.is_set():
                try:
                    if self._random.random() < 0.5 or not self._chains:
                        self._put(engine, cluster)
                    else:
                        self._read(engine, cluster)
                except AssertionError as error:
                    self.violations.append(str(error))
                except McError as error:
                    self.counts[f"block error {error.code}"] += 1

    def _put(self, engine: TransferEngine, cluster: ClusterClient) -> None:
        nodes = [n for n in cluster.nodes().nodes if n.state == "alive" and n.node.segments]
        if not nodes:
            return
        chain = self._random.randrange(_MAX_CHAINS)
        hashes = _hashes(chain)
        memory = np.concatenate([payload_of(block_hash) for block_hash in hashes])
        region = engine.register(memory)
        try:
            blocks = [
                PutBlock(
                    meta=BlockMeta(
                        hash=block_hash,
                        parent=hashes[index - 1] if index else root_hash(_NAMESPACE),
                        namespace=_NAMESPACE,
                        depth=index,
                        num_tokens=_TOKENS,
                        model="soak",
                    ),
                    source=Source(
                        region=region,
                        ranges=Strided(
                            offset=index * _BLOCK,
                            row_bytes=_ROW,
                            num_rows=2 * _NUM_LAYERS,
                            stride_bytes=_ROW,
                        ),
                    ),
                    num_layers=_NUM_LAYERS,
                )
                for index, block_hash in enumerate(hashes)
            ]
            with SyncClient(self._random.choice(nodes).node.control, 3.0) as client:
                reply = put_blocks(client, blocks, 3.0)
        finally:
            engine.deregister(region)
        self.counts.update(f"block {status}" for status in reply.results)
        self._chains.append(chain)

    def _read(self, engine: TransferEngine, cluster: ClusterClient) -> None:
        hashes = _hashes(self._random.choice(self._chains))
        locations: list[BlockLocation] = []
        for replicas in cluster.locate(hashes):
            if not replicas:
                break
            locations.append(replicas[0])
        self.counts["block miss"] += len(hashes) - len(locations)
        with staged(locations, timeout_s=3.0) as here:
            reader = BlockReader(engine)
            for location in here:
                payload = reader.read_block(location, timeout_s=2.0)
                if payload is None:
                    self.counts["block miss"] += 1
                    continue
                is_right = payload == payload_of(location.hash).tobytes()
                assert is_right, f"block {location.hash.hex()}: wrong bytes"
                self.counts["block read"] += 1
        self.counts["block staged"] += sum(location.tier != "dram" for location in locations)


def payload_of(block_hash: BlockHash) -> np.ndarray:
    seed = int.from_bytes(block_hash, "little")
    return np.random.default_rng(seed).integers(0, 256, _BLOCK, np.uint8)


def _hashes(chain: int) -> list[BlockHash]:
    tokens = range(chain * 1000, chain * 1000 + _CHAIN * _TOKENS)
    return block_hashes(_NAMESPACE, tokens, _TOKENS)
