"""How blocks are offered to a cache node, against one that answers at the test's word."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from daemons.client import publisher as module
from daemons.client.publisher import Publisher
from daemons.core.errors import McError, Unavailable
from daemons.core.ids import NodeId
from daemons.protocol.block import PutReply
from daemons.protocol.request import PutTarget

BLOCK_BYTES = 1000


class Channel:
    """Keeps what is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], Callable[[object], object]]] = []

    def get(self, _endpoint: str) -> "Channel":
        return self

    def request(
        self, put: SimpleNamespace, *, timeout_s: float, on_reply: Callable[[object], object]
    ) -> None:
        assert timeout_s > 0
        self.asked.append((put.blocks, on_reply))


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
    monkeypatch.setattr(module, "Put", SimpleNamespace)
    source = SimpleNamespace(ranges=SimpleNamespace(length=BLOCK_BYTES))
    blocks = [SimpleNamespace(index=index, source=source) for index in range(5)]
    channel, done = Channel(), list[int]()
    target = PutTarget(node=NodeId("c"), control="tcp://127.0.0.1:1")
    Publisher(channel).offer(target, blocks, done.append)
    for number, answer in enumerate(answers):
        assert not done
        assert len(channel.asked) == number + 1, "one at a time"
        channel.asked[number][1](answer)
    assert [[block.index for block in asked] for asked, _ in channel.asked] == groups
    assert done == [num_stored]
