"""Other replicas of a reply's blocks, folded for the wire, and unfolded again by the reader."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.client.spares import replicas_of
from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.protocol.lookup import ReplicaPlace, SpareReplica, Spares
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.store.directory.directory import Directory
from daemons.store.directory.spares import MAX_SPARES, spares_of

NODES = [NodeId(f"n{number}") for number in range(5)]


def region(node: NodeId) -> RegionRef:
    address = DataAddress(host_id=HostId(node), unix_path=f"/{node}", tcp="", epoch=Epoch(1))
    return RegionRef(address=address, region_id=3, size_bytes=1 << 30)


def sealed(number: int, offset: int, checksum: int = 5) -> SealedBlock:
    name = BlockHash(bytes([number]) * 16)
    meta = BlockMeta(
        hash=name, parent=BlockHash(b"p" * 16), namespace=b"n", depth=0, num_tokens=1, model="m"
    )
    return SealedBlock(
        meta=meta,
        offset=offset,
        length=1000,
        trailer_bytes=64,
        version=1,
        seal_checksum=checksum + number,
        num_layers=2,
    )


def directory(holders: list[list[int]]) -> Directory:
    made = Directory()
    for node in NODES:
        made.add_node(node, HostId(node), region(node))
    for number, nodes in enumerate(holders):
        for node in nodes:
            made.record_sealed(
                NODES[node],
                SealedBlocks.pack([sealed(number, 4096 * (16 * number + node))]),
                now_s=0,
            )
    return made


def looked_up(made: Directory, num_blocks: int) -> tuple[list[list[NodeId]], Spares | None]:
    """Which nodes the reader may turn to, block by block, the chosen one first."""
    hashes = [sealed(number, 0).meta.hash for number in range(num_blocks)]
    taken = made.match(hashes, now_s=1, lease_s=0)
    chosen = taken.locations.unpack()
    spares = spares_of(made, taken, now_s=1)
    if spares is not None:
        spares = msgspec.msgpack.decode(msgspec.msgpack.encode(spares), type=Spares)
    replicas = replicas_of(chosen, spares)
    for number, of_block in enumerate(replicas):
        for at in of_block:
            node = NODES.index(at.node)
            assert (at.hash, at.offset) == (hashes[number], 4096 * (16 * number + node))
            assert (at.region, at.host_id) == (region(at.node), HostId(at.node))
    return [[at.node for at in of_block] for of_block in replicas], spares


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, unique=True), min_size=1, max_size=8),
    st.sets(st.integers(0, 4), max_size=2),
)
def test_a_reader_may_turn_to_every_replica_healthy_nodes_first(
    holders: list[list[int]], suspects: set[int]
) -> None:
    made = directory(holders)
    for node in suspects:
        made.set_suspect(NODES[node], True)
    found, _ = looked_up(made, len(holders))
    for nodes, names in zip(holders, found, strict=True):
        assert len(set(names)) == len(names) == min(len(nodes), 1 + MAX_SPARES)
        assert set(names) <= {NODES[node] for node in nodes}
        num_healthy = len([node for node in nodes if node not in suspects])
        assert not {NODES[node] for node in suspects} & set(names[:num_healthy])


def test_nothing_is_folded_where_each_block_has_one_replica() -> None:
    assert looked_up(directory([[0], [1]]), 2)[1] is None


def test_replicas_with_other_bytes_gone_or_named_to_go_are_no_spares() -> None:
    made = directory([[0]])
    made.record_sealed(NODES[1], SealedBlocks.pack([sealed(0, 4096, checksum=9)]), now_s=0)
    made.record_sealed(NODES[2], SealedBlocks.pack([sealed(0, 8192)]), now_s=0)
    made.record_sealed(NODES[3], SealedBlocks.pack([sealed(0, 12288)]), now_s=0)
    made.drop_node(NODES[2])
    made.give_up(NODES[3], [sealed(0, 0).meta.hash], now_s=0.5)
    hashes = [sealed(0, 0).meta.hash]
    taken = made.match(hashes, now_s=1, lease_s=0, near=HostId(NODES[0]))
    assert [at.node for at in taken.locations.unpack()] == [NODES[0]]
    assert spares_of(made, taken, now_s=1) is None


@pytest.mark.parametrize(("block", "place"), [(-1, 0), (1, 0), (0, -1), (0, 1)])
def test_spares_that_make_no_sense_are_passed_over(block: int, place: int) -> None:
    made = directory([[0]])
    chosen = made.locate([sealed(0, 0).meta.hash], now_s=0, lease_s=0).unpack()[0]
    other = ReplicaPlace(node=NODES[1], region=region(NODES[1]), host_id=HostId("h"))
    spares = Spares(places=[other], replicas=[SpareReplica(block=block, place=place, offset=0)])
    assert replicas_of(chosen, spares) == [chosen]
