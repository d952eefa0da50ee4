"""A cache node that is told to copy from a peer's segment: verified bytes are sealed, everything else is refused."""

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest

from daemons.client.channel_pool import ChannelPool
from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash, HostId, NodeId, new_epoch
from daemons.mc_cachenode.copies.copy_staging import SourceStaging
from daemons.mc_cachenode.copies.copying import MAX_WAITING, Copying, CopyParts
from daemons.mc_cachenode.metrics import CachenodeMetrics
from daemons.mc_cachenode.replica import Replica, wall_ms
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.protocol.block import BlockLocation, BlockMeta
from daemons.protocol.prefix_hash import root_hash
from daemons.protocol.replication import CopyOrder
from daemons.rpc import Loop
from daemons.store.segment.copy_workers import CopyWorkers
from daemons.store.segment.seal import Trailer, payload_checksums, seal, trailer_length
from daemons.store.segment.segment import Segment
from daemons.transfer import TransferEngine, allocate_shared

NUM_LAYERS, ROW = 3, 5000
LENGTH = 2 * NUM_LAYERS * ROW
SEGMENT = 8 << 20


class Peer:
    """A segment full of sealed blocks, as a cache node has them."""

    def __init__(self, num_blocks: int) -> None:
        self.engine = TransferEngine(epoch=new_epoch(), transports=("tcp",))
        self.segment = Segment(allocate_shared("peer", SEGMENT))
        self.region = self.engine.register(self.segment.memory)
        self.orders = [self._seal(number) for number in range(num_blocks)]

    def _seal(self, number: int) -> CopyOrder:
        payload = np.random.default_rng(number).integers(0, 256, LENGTH, np.uint8)
        name = BlockHash(number.to_bytes(16, "big"))
        checksums = tuple(payload_checksums(payload.data, NUM_LAYERS))
        packed, checksum = seal(Trailer(name, 1, LENGTH, checksums))
        offset = self.segment.allocate(LENGTH + len(packed))
        whole = np.concatenate([payload, np.frombuffer(packed, np.uint8)])
        self.segment.array[offset : offset + whole.nbytes] = whole
        meta = BlockMeta(
            hash=name, parent=root_hash(b"n"), namespace=b"n", depth=0, num_tokens=16, model="m"
        )
        source = BlockLocation(
            hash=name,
            node=NodeId("peer"),
            region=self.region,
            offset=offset,
            length=LENGTH,
            trailer_bytes=len(packed),
            version=1,
            seal_checksum=checksum,
            num_layers=NUM_LAYERS,
            host_id=HostId("h"),
        )
        return CopyOrder(meta=meta, source=source, age_ms=90_000, wanted=2)

    def slot(self, order: CopyOrder) -> bytes:
        start, size = order.source.offset, LENGTH + trailer_length(NUM_LAYERS)
        return self.segment.array[start : start + size].tobytes()


@dataclass
class Node:
    """The copying half of a cache node, on a loop that runs while `settle` waits."""

    loop: Loop
    replicas: ReplicaTable
    copying: Copying
    sealed: list[Replica] = field(default_factory=list)
    present: list[BlockHash] = field(default_factory=list)
    failed: dict[BlockHash, str] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)

    def copy(self, *orders: CopyOrder) -> None:
        expected = self.num_done + len(orders)
        self.copying.ask(orders)
        assert self.loop.run_until(lambda: self.num_done >= expected, 20), "each is answered"

    @property
    def num_done(self) -> int:
        return len(self.sealed) + len(self.present) + len(self.failed)


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    made = Peer(40)
    yield made
    made.engine.close()


@pytest.fixture
def node() -> Iterator[Node]:
    loop = Loop()
    engine = TransferEngine(epoch=new_epoch(), transports=("tcp",))
    workers = CopyWorkers(2, 100)
    replicas = ReplicaTable(Segment(allocate_shared("node", SEGMENT)))
    channels = ChannelPool(loop)
    made: Node

    def on_failed(hashes: list[BlockHash], why: str) -> None:
        made.failed |= dict.fromkeys(hashes, why)

    parts = CopyParts(
        loop=loop,
        engine=engine,
        replicas=replicas,
        workers=workers,
        metrics=CachenodeMetrics(),
        sources=SourceStaging(loop, channels),
        timeout_s=5.0,
        on_sealed=lambda replica: made.sealed.append(replica),
        on_present=lambda block_hash: made.present.append(block_hash),
        on_failed=on_failed,
        on_bad=lambda at, _: made.bad.append(at.node),
    )
    made = Node(loop, replicas, Copying(parts))
    yield made
    channels.close()
    workers.close()
    engine.close()
    loop.close()


def test_copies_are_the_same_bytes_under_the_same_seal_and_age(peer: Peer, node: Node) -> None:
    node.copy(*peer.orders)
    assert (len(node.sealed), node.failed) == (len(peer.orders), {})
    for order in peer.orders:
        replica = node.replicas.get(order.meta.hash)
        assert replica is not None
        assert node.replicas.stored(replica).tobytes() == peer.slot(order)
        assert replica.seal_checksum == order.source.seal_checksum
        assert (replica.version, replica.wanted, replica.meta) == (1, 2, order.meta)
        assert 90_000 <= wall_ms() - replica.created_ms < 120_000
    node.copy(peer.orders[3])
    assert node.present == [peer.orders[3].meta.hash], "what is there is said again, not copied"


@pytest.mark.parametrize("at", [0, LENGTH // 2, LENGTH - 1, LENGTH, LENGTH + 30])
def test_damaged_bytes_are_never_sealed_and_their_source_is_reported(
    peer: Peer, node: Node, at: int
) -> None:
    order = peer.orders[7]
    peer.segment.array[order.source.offset + at] ^= 1
    try:
        node.copy(order, peer.orders[8])
    finally:
        peer.segment.array[order.source.offset + at] ^= 1
    assert list(node.failed) == [order.meta.hash]
    assert node.bad == ["peer"]
    assert [replica.meta.hash for replica in node.sealed] == [peer.orders[8].meta.hash]
    assert node.replicas.get(order.meta.hash) is None
    node.copy(order)
    assert len(node.sealed) == 2, "whole again, it is taken"


def test_a_slot_that_holds_another_block_now_is_refused(peer: Peer, node: Node) -> None:
    order, other = peer.orders[:2]
    moved = msgspec.structs.replace(order.source, offset=other.source.offset)
    node.copy(msgspec.structs.replace(order, source=moved))
    assert list(node.failed) == [order.meta.hash]


@pytest.mark.parametrize(
    "change",
    [
        {"num_layers": 0},
        {"num_layers": 1 << 40},
        {"length": -1},
        {"length": 1 << 50},
        {"trailer_bytes": 8},
        {"version": 0},
        {"offset": 1 << 40},
        {"hash": BlockHash(b"x" * 16)},
        {"seal_checksum": 1},
    ],
)
def test_orders_that_make_no_sense_break_nothing(
    peer: Peer, node: Node, change: dict[str, object]
) -> None:
    source = msgspec.structs.replace(peer.orders[0].source, **change)  # type: ignore[arg-type]
    node.copy(msgspec.structs.replace(peer.orders[0], source=source))
    assert (len(node.failed), node.sealed) == (1, [])
    node.copy(peer.orders[0])
    assert len(node.sealed) == 1


def test_a_full_node_refuses_and_evicts_nothing(peer: Peer, node: Node) -> None:
    with contextlib.suppress(Exhausted):
        while True:
            node.replicas.segments.first.allocate(LENGTH + 64)
    node.copy(*peer.orders[:5])
    assert set(node.failed) == {order.meta.hash for order in peer.orders[:5]}
    assert all("no slot" in why for why in node.failed.values())


def test_a_silent_peer_is_given_up_and_puts_keep_a_worker(peer: Peer, node: Node) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        address = msgspec.structs.replace(
            peer.region.address, tcp=f"127.0.0.1:{silent.getsockname()[1]}", epoch=new_epoch()
        )
        region = msgspec.structs.replace(peer.region, address=address)
        source = msgspec.structs.replace(peer.orders[0].source, region=region, node=NodeId("s"))
        began_s = time.monotonic()
        node.copy(msgspec.structs.replace(peer.orders[0], source=source), peer.orders[1])
        took_s = time.monotonic() - began_s
    assert list(node.failed) == [peer.orders[0].meta.hash]
    assert len(node.sealed) == 1
    assert took_s < 20
    assert node.replicas.num_sealed == 1


def test_a_draining_node_and_a_full_queue_refuse(peer: Peer, node: Node) -> None:
    node.copying.is_refusing = True
    node.copy(peer.orders[0])
    assert list(node.failed) == [peer.orders[0].meta.hash]
    node.copying.is_refusing = False
    node.failed.clear()
    node.copying.ask(peer.orders[:1] * (MAX_WAITING + 10))
    assert len(node.failed) == 1
    assert node.copying.num_waiting <= MAX_WAITING
