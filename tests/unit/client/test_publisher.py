"""How blocks are offered to a cache node, against one that answers at the test's word."""

from collections.abc import Callable

import pytest

from daemons.client import publisher as module
from daemons.client.publisher import Publisher
from daemons.core.errors import McError, Unavailable
from daemons.core.ids import BlockHash, HostId, NodeId, new_epoch
from daemons.protocol.block import BlockMeta, Put, PutBlock, PutReply, Source
from daemons.protocol.request import PutTarget
from daemons.protocol.segment import DataAddress, RegionRef, Strided

BLOCK_BYTES = 1000
HERE = DataAddress(host_id=HostId("h"), unix_path="", tcp="", epoch=new_epoch())
REGION = RegionRef(address=HERE, region_id=1, size_bytes=1 << 20)
TARGET = PutTarget(node=NodeId("c"), control="tcp://127.0.0.1:1")


class Channel:
    """Keeps what is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[PutBlock], Callable[[object], object]]] = []

    def get(self, _endpoint: str) -> "Channel":
        return self

    def request(self, put: Put, *, timeout_s: float, on_reply: Callable[[object], object]) -> None:
        assert timeout_s > 0
        self.asked.append((put.blocks, on_reply))


def block(index: int) -> PutBlock:
    """As an arena has it: runs of bytes apart from each other."""
    ranges = Strided(offset=0, row_bytes=BLOCK_BYTES // 4, num_rows=4, stride_bytes=BLOCK_BYTES)
    meta = BlockMeta(
        hash=BlockHash(bytes([index]) * 16),
        parent=BlockHash(bytes(16)),
        namespace=b"n",
        depth=index,
        num_tokens=64,
        model="m",
    )
    return PutBlock(meta=meta, source=Source(region=REGION, ranges=ranges), num_layers=1)


def stored(num_stored: int, num_blocks: int) -> PutReply:
    return PutReply(results=["stored"] * num_stored + ["exhausted"] * (num_blocks - num_stored))


@pytest.mark.parametrize(
    ("answers", "groups", "num_stored"),
    [
        ([stored(2, 2), stored(2, 2), stored(1, 1)], [[0, 1], [2, 3], [4]], 5),
        ([stored(2, 2), stored(1, 2)], [[0, 1], [2, 3]], 3),
        ([Unavailable("no answer in time")], [[0, 1]], 0),
    ],
)
@pytest.mark.parametrize(
    ("bound", "value"), [("_GROUP_BLOCKS", 2), ("_GROUP_BYTES", 3 * BLOCK_BYTES - 1)]
)
def test_many_blocks_are_put_a_group_after_another_until_one_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    value: int,
    answers: list[PutReply | McError],
    groups: list[list[int]],
    num_stored: int,
) -> None:
    """One put of them all would end as a whole when its time is over."""
    monkeypatch.setattr(module, bound, value)
    channel, done = Channel(), list[int]()
    Publisher(channel).offer(TARGET, [block(index) for index in range(5)], done.append)
    for number, answer in enumerate(answers):
        assert not done
        assert len(channel.asked) == number + 1, "one at a time"
        channel.asked[number][1](answer)
    assert [[each.meta.depth for each in asked] for asked, _ in channel.asked] == groups
    assert done == [num_stored]


def test_what_is_cleared_between_two_groups_is_not_put_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_GROUP_BLOCKS", 2)
    channel, done, is_wanted = Channel(), list[int](), [True, False]
    blocks = [block(index) for index in range(9)]
    Publisher(channel).offer(TARGET, blocks, done.append, is_wanted=lambda: is_wanted.pop(0))
    for number in range(2):
        channel.asked[number][1](stored(2, 2))
    assert len(channel.asked) == 2
    assert done == [4]
