"""A real master and several real cache nodes, each its own domain, and a client that puts and reads blocks."""

from pathlib import Path

import numpy as np

from daemons.client.cluster import ClusterClient
from daemons.client.node_health import NodeHealth, suspicion
from daemons.client.store import BlockReader, put_blocks
from daemons.core.ids import BlockHash, NodeId, new_epoch
from daemons.protocol.block import BlockLocation, BlockMeta, PutBlock
from daemons.protocol.lookup import Match, MatchReply, Spares
from daemons.protocol.node import ListedNode
from daemons.protocol.prefix_hash import block_hashes, root_hash
from daemons.protocol.segment import Source, Strided
from daemons.rpc import SyncClient
from daemons.transfer import TransferEngine
from kit.daemon import Daemon, free_port, wait_for

NAMESPACE = b"replication-test"
NUM_LAYERS, ROW = 4, 4096
BLOCK = 2 * NUM_LAYERS * ROW
TOKENS = 16


class ReplicatedPool:
    """`transports` are the reader's: with tcp alone a stopped node does not answer."""

    def __init__(
        self,
        directory: Path,
        num_nodes: int,
        *settings: str,
        transports: tuple[str, ...] = ("tcp",),
        segment: str = "16MiB",
    ) -> None:
        self._directory = directory
        self.node_settings = (f"segment.size={segment}", "report.interval_s=0.002")
        self.master = Daemon(
            "daemons.mc_master",
            f"node.listen=tcp://127.0.0.1:{free_port()}",
            f"node.events=tcp://127.0.0.1:{free_port()}",
            "node.metrics=",
            f"node.state_dir={directory / 'state'}",
            "membership.beat_interval_s=0.25",
            "pool.rebuild_delay_s=1",
            # Replicas are counted here: none for heat, and nothing moves by itself.
            "pool.hot_uses=0",
            "pool.spread_cold=false",
            *settings,
        )
        self.nodes: dict[str, Daemon] = {}
        try:
            self.endpoint = self.master.find(r"at=(tcp://\S+)")
            for number in range(num_nodes):
                self.add_node(f"n{number}")
            for node in self.nodes.values():
                node.find(r"(joined) master")
        except BaseException:
            self._stop()
            raise
        self.client = ClusterClient(self.endpoint)
        self.engine = TransferEngine(
            epoch=new_epoch(), unix_dir=directory / "reader", transports=transports
        )
        self.health = NodeHealth(on_suspect=lambda at, why: self._tell(suspicion(at, why)))
        self.reader = BlockReader(self.engine, self.health)
        self.payloads: dict[BlockHash, bytes] = {}

    def add_node(self, name: str, domain: str = "") -> None:
        self.nodes[name] = Daemon(
            "daemons.mc_cachenode",
            f"node.id={name}",
            f"node.domain={domain or name}",
            "node.listen=tcp://127.0.0.1:0",
            "node.metrics=",
            f"master.endpoint={self.endpoint}",
            f"segment.directory={self._directory / 'shm'}",
            f"transfer.unix_dir={self._directory / name}",
            *self.node_settings,
        )

    def put(self, node: str, tokens: range, *, wanted: int = 0) -> list[BlockHash]:
        """A chain of blocks of these tokens, with bytes of their own."""
        hashes = block_hashes(NAMESPACE, tokens, TOKENS)
        memory = np.random.default_rng(tokens.start).integers(0, 256, len(hashes) * BLOCK, np.uint8)
        region = self.engine.register(memory)
        blocks = []
        for index, block_hash in enumerate(hashes):
            rows = Strided(
                offset=index * BLOCK, row_bytes=ROW, num_rows=2 * NUM_LAYERS, stride_bytes=ROW
            )
            meta = BlockMeta(
                hash=block_hash,
                parent=hashes[index - 1] if index else root_hash(NAMESPACE),
                namespace=NAMESPACE,
                depth=index,
                num_tokens=TOKENS,
                model="m",
            )
            source = Source(region=region, ranges=rows)
            blocks.append(PutBlock(meta=meta, source=source, num_layers=NUM_LAYERS, wanted=wanted))
            start = index * BLOCK
            self.payloads[block_hash] = memory[start : start + BLOCK].tobytes()
        with SyncClient(self.node(node).node.control) as client:
            reply = put_blocks(client, blocks)
        assert set(reply.results) == {"stored"}, reply
        self.engine.deregister(region)
        return hashes

    def node(self, name: str) -> ListedNode:
        return next(n for n in self.client.nodes().nodes if n.node.node == name)

    def state(self, name: str) -> str:
        return next((n.state for n in self.client.nodes().nodes if n.node.node == name), "unknown")

    def where(self, hashes: list[BlockHash]) -> list[set[NodeId]]:
        return [{at.node for at in of_block} for of_block in self.client.locate(hashes)]

    def wait_for_replicas(self, hashes: list[BlockHash], count: int, timeout_s: float = 30) -> None:
        wait_for(
            lambda: all(len(nodes) == count for nodes in self.where(hashes)),
            timeout_s,
            f"{count} replicas of each block",
        )

    def match(self, hashes: list[BlockHash]) -> MatchReply:
        with SyncClient(self.endpoint) as client:
            reply = client.request(Match(hashes=hashes, lease_ms=300))
        assert isinstance(reply, MatchReply)
        return reply

    def read(self, hashes: list[BlockHash]) -> int:
        """How many of the first of these could be read; every byte of them is compared."""
        reply = self.match(hashes)
        return self.read_at(reply.locations.unpack(), reply.spares)

    def read_at(self, locations: list[BlockLocation], spares: Spares | None = None) -> int:
        """As `read`, from where they are said to be."""
        hashes = [each.hash for each in locations]
        opened = self.reader.open(locations, spares=spares)
        count = opened.num_good
        rows = np.zeros((2 * NUM_LAYERS, max(1, count) * ROW), np.uint8)
        targets = [(rows[2 * layer], rows[2 * layer + 1]) for layer in range(NUM_LAYERS)]
        good = opened.read_layers(0, targets, count) if count else 0
        blocks = rows.reshape(2 * NUM_LAYERS, -1, ROW)
        for index in range(good):
            assert blocks[:, index].tobytes() == self.payloads[hashes[index]], "wrong bytes"
        return good

    def close(self) -> None:
        self.engine.close()
        self.client.close()
        self._stop()

    def _stop(self) -> None:
        for daemon in (*self.nodes.values(), self.master):
            daemon.stop()

    def _tell(self, message: object) -> None:
        with SyncClient(self.endpoint, 2.0) as client:
            client.request(message)  # type: ignore[arg-type]  # a SuspectNode
