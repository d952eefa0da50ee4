"""Getting blocks from where they are located, and putting them; bytes are verified where they arrive.

A location may be old: its lease ended, its slot was reused, its node is gone. The seal checksum in it is what makes a
read safe: the trailer is checked against it, and every layer against the trailer. What fails is read from another
replica where the reply named one, else it is a miss.
"""

from collections.abc import Sequence

import numpy as np

from daemons.client.node_health import NodeHealth
from daemons.client.opened_blocks import LayerTarget, OpenedBlocks
from daemons.client.spares import replicas_of
from daemons.core.ids import new_put_id
from daemons.protocol.block import BlockLocation, Put, PutBlock, PutReply
from daemons.protocol.lookup import Spares
from daemons.protocol.segment import RegionGrant
from daemons.rpc import SyncClient
from daemons.transfer import TransferEngine

__all__ = ["BlockReader", "LayerTarget", "OpenedBlocks", "put_blocks"]


class BlockReader:
    """Reads runs of blocks. Thread safe; one per process is enough, and what it learns of nodes serves all reads."""

    def __init__(self, engine: TransferEngine, health: NodeHealth | None = None) -> None:
        self.health = health or NodeHealth()
        self._engine = engine

    def open(
        self,
        locations: Sequence[BlockLocation],
        *,
        spares: Spares | None = None,
        grants: Sequence[RegionGrant] = (),
        timeout_s: float = 5.0,
    ) -> OpenedBlocks:
        """Read and check the trailers. `num_good` of the result are there, in order, and of one shape.

        `spares` and `grants` are those of the reply that named the locations, all or the first of them. A daemon needs
        no grants; who does has none for the spares, and asks the master again when a location fails.
        """
        replicas = replicas_of(locations, spares)
        return OpenedBlocks(self._engine, self.health, replicas, grants, timeout_s)

    def read_block(
        self, location: BlockLocation, *others: BlockLocation, timeout_s: float = 5.0
    ) -> bytes | None:
        """The verified payload of one block, from the first of its replicas that has it; None is a miss."""
        opened = OpenedBlocks(self._engine, self.health, [[location, *others]], (), timeout_s)
        if not opened.num_good:
            return None
        payload = np.empty(location.length, np.uint8)
        rows = payload.reshape(2 * location.num_layers, opened.row_bytes)
        targets = [(rows[2 * layer], rows[2 * layer + 1]) for layer in range(location.num_layers)]
        good = opened.read_layers(0, targets, 1, timeout_s=timeout_s)
        return payload.tobytes() if good else None


def put_blocks(client: SyncClient, blocks: Sequence[PutBlock], timeout_s: float = 15.0) -> PutReply:
    """Offer blocks to one cache node and wait until it has pulled them; their bytes must stay until then."""
    reply = client.request(Put(put_id=new_put_id(), blocks=list(blocks)), timeout_s)
    assert isinstance(reply, PutReply)
    return reply
