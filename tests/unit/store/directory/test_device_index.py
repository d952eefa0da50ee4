"""The master's view of what instances hold in their arenas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.core.errors import ProtocolError
from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.block import BlockFilter, BlockMeta, SealedBlock
from daemons.protocol.packed import SealedBlocks
from daemons.store.directory import device_index
from daemons.store.directory.device_index import DeviceIndex

A, B = NodeId("a"), NodeId("b")


def name(index: int) -> BlockHash:
    return BlockHash(index.to_bytes(16, "big"))


def sealed(*indexes: int, tenant: str = "", age_ms: int = 0) -> SealedBlocks:
    return SealedBlocks.pack(
        SealedBlock(
            meta=BlockMeta(
                hash=name(index),
                parent=name(index - 1 if index else 99),
                namespace=bytes(16),
                depth=index,
                num_tokens=64,
                model="m",
                tenant=tenant,
            ),
            offset=0,
            length=100,
            trailer_bytes=0,
            version=0,
            seal_checksum=0,
            num_layers=1,
            age_ms=age_ms,
        )
        for index in indexes
    )


def test_each_instance_has_its_own_longest_prefix() -> None:
    index = DeviceIndex()
    index.record_sealed(A, sealed(0, 1, 2, 4), now_s=0)
    index.record_sealed(B, sealed(0, 1), now_s=0)
    chain = [name(i) for i in range(5)]
    assert index.leading(chain) == {A: 3, B: 2}
    assert index.leading(chain[:2]) == {A: 2, B: 2}
    assert index.leading([]) == index.leading(chain[3:]) == {}
    index.record_freed(A, [name(0)])
    assert index.leading(chain) == {B: 2}


def test_a_repeat_is_nothing_new_and_an_end_leaves_nothing() -> None:
    index = DeviceIndex()
    assert len(index.record_sealed(A, sealed(0, 1), now_s=0)) == 2
    assert index.record_sealed(A, sealed(1, 2), now_s=0).hashes() == [name(2)]
    index.record_sealed(B, sealed(2), now_s=0)
    assert index.record_freed(B, [name(0), name(2)]) == [name(2)]
    assert sorted(index.drop_node(A)) == [name(0), name(1), name(2)]
    assert (len(index), index.num_on(A), index.drop_node(A)) == (0, 0, [])


def test_filters_choose_as_in_the_pool() -> None:
    index = DeviceIndex()
    index.record_sealed(A, sealed(0, 1, tenant="t", age_ms=5000), now_s=10)
    index.record_sealed(B, sealed(1, 2), now_s=10)

    def chosen(**fields: object) -> dict[NodeId, list[BlockHash]]:
        return index.holders(BlockFilter(**fields), now_s=11)  # type: ignore[arg-type]

    assert chosen(tenant="t") == {A: [name(0), name(1)], B: [name(1)]}
    assert chosen(node=B) == {B: [name(1), name(2)]}
    assert chosen(older_than_s=3.0, node=A) == {A: [name(0), name(1)]}
    assert chosen(hash_prefix=name(2).hex()) == {B: [name(2)]}
    assert chosen(hashes=(name(0), name(7))) == {A: [name(0)]}
    assert chosen(model="other") == chosen(node=NodeId("c")) == {}


def test_an_instance_that_claims_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_index, "MAX_BLOCKS", 3)
    index = DeviceIndex()
    index.record_sealed(A, sealed(0, 1), now_s=0)
    with pytest.raises(ProtocolError, match="retain_fraction"):
        index.record_sealed(A, sealed(2, 3), now_s=0)
    assert index.num_on(A) == 2
    # What is told again, or twice, is held once.
    assert index.record_sealed(A, sealed(0, 1, 2, 2), now_s=0).hashes() == [name(2)]
    index.record_sealed(B, sealed(3, 4, 5), now_s=0)
    with pytest.raises(ProtocolError, match="retain_fraction"):
        index.record_sealed(A, sealed(0, 3), now_s=0)
    index.check_invariants()


steps = st.lists(
    st.tuples(
        st.sampled_from(["seal", "free", "drop"]),
        st.sampled_from([A, B, NodeId("c")]),
        st.lists(st.integers(0, 6), max_size=5, unique=True),
    ),
    max_size=30,
)


@given(steps=steps)
def test_it_is_what_a_plain_set_of_pairs_would_be(
    steps: list[tuple[str, NodeId, list[int]]],
) -> None:
    index, pairs = DeviceIndex(), set[tuple[NodeId, int]]()
    for what, node, blocks in steps:
        if what == "seal":
            index.record_sealed(node, sealed(*blocks), now_s=0)
            pairs |= {(node, block) for block in blocks}
        elif what == "free":
            index.record_freed(node, map(name, blocks))
            pairs -= {(node, block) for block in blocks}
        else:
            index.drop_node(node)
            pairs = {pair for pair in pairs if pair[0] != node}
        index.check_invariants()
    plain = {}
    for node in (A, B, NodeId("c")):
        held = next((i for i in range(7) if (node, i) not in pairs), 7)
        plain |= {node: held} if held else {}
    assert index.leading([name(i) for i in range(7)]) == plain
