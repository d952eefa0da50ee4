import pytest
from kit.index_records import sealed

from daemons.core.ids import NodeId
from daemons.protocol.block import BlockFilter
from daemons.store.directory.tombstones import MAX_TOMBSTONES, TTL_S, Tombstones

META = sealed(0x1234).block.meta
NODE = NodeId("node-a")


@pytest.mark.parametrize(
    ("wanted", "is_match"),
    [
        (BlockFilter(), True),
        (BlockFilter(model="m", tenant="", node=NODE, hash_prefix="00"), True),
        (BlockFilter(model="other"), False),
        (BlockFilter(tenant="other"), False),
        (BlockFilter(node=NodeId("node-b")), False),
        (BlockFilter(hash_prefix="01"), False),
    ],
)
def test_covers_what_its_filter_matches(wanted: BlockFilter, is_match: bool) -> None:
    tombstones = Tombstones()
    tombstones.add(wanted, 100.0)
    assert tombstones.covers(NODE, META, 99.0) is is_match
    assert not tombstones.covers(NODE, META, 100.1), "sealed after it was cleared"


def test_clear_of_old_blocks_spares_the_younger() -> None:
    tombstones = Tombstones()
    tombstones.add(BlockFilter(older_than_s=10.0), 100.0)
    assert tombstones.covers(NODE, META, 89.0)
    assert not tombstones.covers(NODE, META, 91.0)


def test_latest_of_equal_clears_counts() -> None:
    tombstones = Tombstones()
    assert tombstones.add(BlockFilter(), 100.0)
    assert not tombstones.add(BlockFilter(), 90.0)
    assert not tombstones.add(BlockFilter(), 100.5, skew_s=1.0)
    assert tombstones.add(BlockFilter(), 100.5)
    assert list(tombstones) == [(BlockFilter(), 100.5)]


def test_number_and_age_are_bounded() -> None:
    tombstones = Tombstones()
    for number in range(MAX_TOMBSTONES + 5):
        tombstones.add(BlockFilter(model=str(number)), float(number))
    assert len(tombstones) == MAX_TOMBSTONES
    assert min(at_s for _, at_s in tombstones) == 5.0
    tombstones.expire(TTL_S + 10.0)
    assert min(at_s for _, at_s in tombstones) == 10.0
