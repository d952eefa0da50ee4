"""What of a reply is read together: blocks of one shape, replicas of the same bytes."""

from typing import Any

import msgspec
import pytest

from daemons.client.readable import of_one_shape, same_bytes
from daemons.core.ids import BlockHash, Epoch, HostId, NodeId
from daemons.protocol.block import BlockLocation
from daemons.protocol.segment import DataAddress, RegionRef

ADDRESS = DataAddress(host_id=HostId("h"), unix_path="/u", tcp="", epoch=Epoch(1))
GOOD = BlockLocation(
    hash=BlockHash(bytes(16)),
    node=NodeId("n"),
    region=RegionRef(address=ADDRESS, region_id=1, size_bytes=1 << 20),
    offset=0,
    length=4096,
    trailer_bytes=64,
    version=1,
    seal_checksum=7,
    num_layers=2,
)


def changed(**fields: Any) -> BlockLocation:
    return msgspec.structs.replace(GOOD, **fields)


@pytest.mark.parametrize(
    "fields", [{"length": 8192}, {"num_layers": 4}, {"trailer_bytes": 128}, {"length": 4098}]
)
def test_what_comes_behind_one_of_another_shape_is_left_out(fields: dict[str, int]) -> None:
    assert of_one_shape([GOOD, GOOD, changed(**fields), GOOD]) == [GOOD, GOOD]


@pytest.mark.parametrize(
    "fields",
    [{"length": 0}, {"num_layers": 0}, {"num_layers": -1}, {"trailer_bytes": 0}, {"length": 4097}],
)
def test_a_shape_that_no_block_has_is_never_read(fields: dict[str, int]) -> None:
    assert of_one_shape([changed(**fields)] * 2) == []


def test_only_replicas_of_the_same_bytes_stand_in_for_each_other() -> None:
    twin = changed(node=NodeId("twin"), offset=8192)
    others = [
        changed(seal_checksum=8),
        changed(length=8192),
        changed(num_layers=1),
        changed(trailer_bytes=65),
        changed(hash=BlockHash(b"x" * 16)),
    ]
    assert same_bytes(GOOD, [GOOD, *others, twin]) == [GOOD, twin]
