"""Values of one size fill a node's memory, then others come: those from before are on the SSD, and can be read."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.object_pool import ObjectPool

from mcctl import Store


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[ObjectPool]:
    pool = ObjectPool(1, started=0, segment="16MiB")
    ssd = (f"ssd.directory={tmp_path}", "ssd.capacity=64MiB", "ssd.bucket=8MiB", "ssd.stage=1MiB")
    pool.start_node(0, *ssd)
    pool.wait_joined(1)
    yield pool
    pool.close()


def test_values_that_make_room_for_other_sizes_are_neither_lost_nor_out_of_reach(
    pool: ObjectPool,
) -> None:
    """Memory is cut into slots of one size a slab: a node is full for one size while others have room."""
    sizes = [9_000] * 20 + [200_000] * 60 + [70_000] * 15
    values = {f"o{n}": random.Random(n).randbytes(size) for n, size in enumerate(sizes)}
    with Store(pool.endpoint) as store:
        for name, value in values.items():
            store.put(name, value)
    with Store(pool.endpoint) as store:
        for name, value in values.items():
            assert store.get(name) == value
