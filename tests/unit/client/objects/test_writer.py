"""The rules of a put, driven step by step: what a caller is told when the time was not enough."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from daemons.client.objects.format import ValueType
from daemons.client.objects.parts import Item
from daemons.client.objects.source import SourceMemory
from daemons.client.objects.steps import AskMaster, AskNodes, Step
from daemons.client.objects.writer import ObjectPut
from daemons.core.errors import Exhausted, Unavailable
from daemons.core.ids import NodeId
from daemons.protocol.base import Ok
from daemons.protocol.block import BlockLocation, Put, PutBlock, PutReply, PutStatus
from daemons.protocol.objects import ReservedName, ReserveNames, ReserveNamesReply
from daemons.protocol.request import PutTarget
from daemons.transfer import TransferEngine


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[SourceMemory]:
    with TransferEngine(unix_dir=tmp_path) as engine:
        made = SourceMemory(engine)
        yield made
        made.close()


def answer(step: Step) -> object:
    """Of a master with one cache node, which does not answer."""
    if isinstance(step, AskNodes):
        return [Unavailable("tcp://h:1 did not answer within 0.027 s") for _ in step.asked]
    if isinstance(step, AskMaster) and isinstance(step.message, ReserveNames):
        names = [ReservedName(status="reserved", version=9) for _ in step.message.names]
        target = PutTarget(node=NodeId("n"), control="tcp://h:1")
        return ReserveNamesReply(names=names, targets=[target], chunk_bytes=1 << 20)
    return Ok() if isinstance(step, AskMaster) else None


def run(memory: SourceMemory, items: list[Item], answer: Callable[[Step], object]) -> None:
    put = ObjectPut(memory, b"", replaces=False, is_same=lambda _at, _item: True, timeout_s=0.2)
    steps = put.run(items)
    step: Step | None = next(steps)
    while step is not None:
        try:
            step = steps.send(answer(step))
        except StopIteration:
            step = None


def test_a_put_that_ran_out_of_time_tells_the_whole_of_it(memory: SourceMemory) -> None:
    """The last try has only what is left, so its own account of the time says nothing."""
    item = Item(b"weights", np.zeros(10, np.uint8), ValueType())
    run(memory, [item], answer)
    assert isinstance(item.outcome, Unavailable)
    assert item.outcome.message == (
        "'weights' could not be put within 0.2 s; the last try: tcp://h:1 did not answer within 0.027 s"
    )


def test_a_value_that_cannot_be_lent_fails_alone(
    memory: SourceMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a node takes no values in messages, and there is no memory to lend them from either."""
    items = [Item(name, np.zeros(10, np.uint8), ValueType()) for name in (b"first", b"second")]

    def refuse() -> None:
        raise Exhausted("all is lent")

    def first_refused(step: Step) -> object:
        if not isinstance(step, AskNodes):
            return answer(step)
        [(_, put)] = step.asked
        assert isinstance(put, Put)
        results: list[PutStatus] = [
            "failed" if block.meta.name == b"first" else "stored" for block in put.blocks
        ]
        places = [_place(block) for block in put.blocks if block.meta.name != b"first"]
        return [PutReply(results=results, why="a tail that is too long", locations=places)]

    monkeypatch.setattr(memory, "open", refuse)
    run(memory, items, first_refused)
    assert isinstance(items[0].outcome, Exhausted)
    assert isinstance(items[1].outcome, BlockLocation)


def _place(block: PutBlock) -> BlockLocation:
    return BlockLocation(
        hash=block.meta.hash,
        node=NodeId("n"),
        region=block.source.region,
        offset=0,
        length=10,
        trailer_bytes=8,
        version=block.version,
        seal_checksum=0,
        num_layers=1,
    )


def test_a_value_larger_than_the_pool_fails_alone_and_before_anything_is_put(
    memory: SourceMemory,
) -> None:
    items = [
        Item(b"large", np.zeros(101, np.uint8), ValueType()),
        Item(b"small", np.zeros(100, np.uint8), ValueType()),
    ]
    put: list[bytes] = []

    def with_room(step: Step) -> object:
        reply = answer(step)
        if isinstance(step, AskNodes):
            put.extend(block.meta.hash for _, message in step.asked for block in message.blocks)
        return (
            msgspec.structs.replace(reply, room_bytes=100)
            if isinstance(reply, ReserveNamesReply)
            else reply
        )

    run(memory, items, with_room)
    assert isinstance(items[0].outcome, Exhausted)
    assert "'large' of 101 B is larger than the whole pool, 100 B" in items[0].outcome.message
    assert isinstance(items[1].outcome, Unavailable), "it was put, and the node does not answer"
    assert len(set(put)) == 1
