"""Chains that are looked up together get the answers, leases and counts that they would get one after the other."""

from hypothesis import given
from hypothesis import strategies as st

from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.prefix_hash import block_hashes, root_hash
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.store.directory.directory import Directory
from daemons.store.eviction.policies import POLICIES

NAMESPACE = b"n" * 16
NODES = (NodeId("n0"), NodeId("n1"))
CHAINS = [block_hashes(NAMESPACE, [seed * 1000 + i for i in range(48)], 8) for seed in range(4)]
LEASE_S = 10.0


def sealed(hashes: list[BlockHash]) -> SealedBlocks:
    parents = [root_hash(NAMESPACE), *hashes]
    return SealedBlocks.pack(
        SealedBlock(
            meta=BlockMeta(
                hash=key,
                parent=parents[depth],
                namespace=NAMESPACE,
                depth=depth,
                num_tokens=8,
                model="m",
            ),
            offset=depth * 100,
            length=100,
            trailer_bytes=8,
            version=1,
            seal_checksum=depth,
            num_layers=2,
        )
        for depth, key in enumerate(hashes)
    )


def directory(policy: str = "lru") -> Directory:
    """The first two chains are on one node each."""
    made = Directory(POLICIES[policy])
    for node, hashes in zip(NODES, CHAINS, strict=False):
        host = HostId(f"host of {node}")
        address = DataAddress(host_id=host, unix_path="/u", tcp="127.0.0.1:1", epoch=Epoch(1))
        made.add_node(node, host, RegionRef(address=address, region_id=1, size_bytes=1 << 20))
        made.record_sealed(node, sealed(hashes), now_s=0)
    return made


PART = st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 6)).map(
    lambda at: CHAINS[at[0]][at[1] :][: at[2]]
)


@given(st.lists(st.one_of(PART, PART.map(lambda part: part + CHAINS[3][:2])), min_size=1))
def test_together_is_as_one_after_the_other(asked: list[list[BlockHash]]) -> None:
    one, both = directory(), directory()
    singly = [one.match(each, now_s=1, lease_s=LEASE_S) for each in asked]
    found = both.match_together(asked, now_s=1)
    assert found is not None
    rows = both.lease_together(found, sum(map(len, asked)), now_s=1, lease_s=LEASE_S)
    assert [each.locations.unpack() for each in found] == [
        each.locations.unpack() for each in singly
    ]
    assert rows.tolist() == [row for each in singly for row in each.rows.tolist()]
    assert both.lookups == one.lookups
    assert both.leases.used_s.values.tolist() == one.leases.used_s.values.tolist()
    assert both.leases.until_s.values.tolist() == one.leases.until_s.values.tolist()
    both.check_invariants()


def test_where_replicas_are_to_be_chosen_from_they_are_looked_up_one_by_one() -> None:
    doubted = directory()
    doubted.set_suspect(NODES[0], True)
    spared = directory()
    spared.record_sealed(NODES[1], sealed(CHAINS[0]), now_s=0)
    for made in (doubted, spared, directory("lfu")):
        assert made.match_together(CHAINS[:2], now_s=1) is None
