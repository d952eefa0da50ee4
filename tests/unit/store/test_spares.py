"""Other replicas of a reply's blocks, folded for the wire and unfolded again."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockLocation, ReplicaPlace, SpareReplica, Spares
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.store.spares import MAX_SPARES, fold, replicas_of


def replica(block: int, node: int, checksum: int = 5) -> BlockLocation:
    address = DataAddress(
        host_id=HostId(f"h{node}"), unix_path=f"/u{node}", tcp="", epoch=Epoch(node + 1)
    )
    return BlockLocation(
        hash=BlockHash(bytes([block]) * 16),
        node=NodeId(f"n{node}"),
        region=RegionRef(address=address, region_id=3, size_bytes=1 << 30),
        offset=4096 * (16 * block + node),
        length=1000,
        trailer_bytes=64,
        version=1,
        seal_checksum=checksum + block,
        num_layers=2,
        host_id=address.host_id,
    )


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True), max_size=8))
def test_what_is_folded_unfolds_to_the_same_replicas(nodes: list[list[int]]) -> None:
    replicas = [[replica(b, node) for node in of_block] for b, of_block in enumerate(nodes)]
    chosen = [of_block[0] for of_block in replicas]
    folded = fold(chosen, replicas)
    if folded is not None:
        folded = msgspec.msgpack.decode(msgspec.msgpack.encode(folded), type=Spares)
    assert replicas_of(chosen, folded) == [of_block[: 1 + MAX_SPARES] for of_block in replicas]


def test_nothing_is_folded_where_each_block_has_one_replica() -> None:
    chosen = [replica(0, 0), replica(1, 1)]
    assert fold(chosen, [[], [chosen[1]]]) is None


def test_a_replica_with_other_bytes_is_no_spare() -> None:
    first = replica(0, 0)
    assert fold([first], [[first, replica(0, 1, checksum=9)]]) is None


@pytest.mark.parametrize(("block", "place"), [(-1, 0), (1, 0), (0, -1), (0, 1)])
def test_spares_that_make_no_sense_are_passed_over(block: int, place: int) -> None:
    first = replica(0, 0)
    other = ReplicaPlace(node=NodeId("n1"), region=first.region, host_id=HostId("h"))
    spares = Spares(places=[other], replicas=[SpareReplica(block=block, place=place, offset=0)])
    assert replicas_of([first], spares) == [[first]]
