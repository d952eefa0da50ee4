"""What a put does while it has to wait for its turn, or for others that put the same names."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from daemons.client.objects.format import ValueType
from daemons.client.objects.parts import Item
from daemons.client.objects.source import SourceMemory
from daemons.client.objects.steps import AskMaster, AskNodes, Pause, Step
from daemons.client.objects.writer import ObjectPut
from daemons.core.errors import Exhausted, McError, Unavailable
from daemons.core.ids import NodeId
from daemons.protocol.base import Ok
from daemons.protocol.block import BlockLocation, PutBlock, PutReply
from daemons.protocol.objects import (
    ReleaseNames,
    ReservedName,
    ReserveNames,
    ReserveNamesReply,
    ReserveStatus,
)
from daemons.protocol.request import PutTarget
from daemons.transfer import TransferEngine

CHUNK = 1000


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[SourceMemory]:
    with TransferEngine(unix_dir=tmp_path) as engine:
        made = SourceMemory(engine)
        yield made
        made.close()


class Cluster:
    """A master that says of each name what the test says of it, in turn, and a node that takes everything."""

    def __init__(self, said: dict[bytes, list[ReserveStatus]]) -> None:
        self.said = said
        self.log: list[str] = []
        self.asked: list[ReserveNames] = []
        self.released: list[bytes] = []

    def answer(self, step: Step) -> object:
        match step:
            case AskMaster(message=ReserveNames() as message):
                self.asked.append(message)
                return self._reserve(message)
            case AskMaster(message=ReleaseNames() as message):
                self.released += [item.name for item in message.names]
                return Ok()
            case AskNodes():
                replies = []
                for _, put in step.asked:
                    self.log += [
                        f"put {block.meta.name.decode() or 'chunk'}" for block in put.blocks
                    ]
                    places = [_place(block) for block in put.blocks]
                    replies.append(
                        PutReply(results=["stored"] * len(put.blocks), why="", locations=places)
                    )
                return replies
            case Pause():
                self.log.append("pause")
        return None

    def _reserve(self, message: ReserveNames) -> ReserveNamesReply:
        names = []
        for item in message.names:
            left = self.said.get(item.name, [])
            status = left.pop(0) if left else "reserved"
            why = "others hold all room" if status == "waits_for_room" else ""
            names.append(ReservedName(status=status, version=9 + item.version, why=why))
        target = PutTarget(node=NodeId("n"), control="tcp://h:1")
        return ReserveNamesReply(names=names, targets=[target], chunk_bytes=CHUNK)


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


def item(name: str, num_bytes: int) -> Item:
    return Item(name.encode(), np.zeros(num_bytes, np.uint8), ValueType())


def put_of(memory: SourceMemory, timeout_s: float = 5.0) -> ObjectPut:
    return ObjectPut(
        memory, b"", replaces=False, is_same=lambda _at, _item: True, timeout_s=timeout_s
    )


def drive(put: ObjectPut, items: list[Item], answer: Callable[[Step], object]) -> None:
    steps = put.run(items)
    step: Step | None = next(steps)
    while step is not None:
        try:
            step = steps.send(answer(step))
        except StopIteration:
            step = None


def test_one_that_waits_for_its_turn_asks_again_and_is_put_then(memory: SourceMemory) -> None:
    large = item("large", 2 * CHUNK)
    cluster = Cluster({b"large": ["waits_for_room", "waits_for_room"]})
    drive(put_of(memory), [large], cluster.answer)
    assert isinstance(large.outcome, BlockLocation)
    assert cluster.log == ["pause", "pause", "put chunk", "put chunk", "put large"]
    assert all(message.takes_turns for message in cluster.asked)


def test_it_is_told_what_it_waited_for_in_vain(memory: SourceMemory) -> None:
    large = item("large", 2 * CHUNK)
    cluster = Cluster({b"large": ["waits_for_room"] * 1000})
    drive(put_of(memory, timeout_s=0.01), [large], cluster.answer)
    assert isinstance(large.outcome, Exhausted)
    assert large.outcome.message == (
        "no room for 'large' of 2.0 KiB within 0.01 s; it waited for its turn: others hold all room"
    )


@pytest.mark.parametrize("why", ["waits_for_room", "being_written"])
def test_what_has_its_turn_is_put_while_others_of_the_call_wait(
    memory: SourceMemory, why: ReserveStatus
) -> None:
    """They may wait for this one; so may others, that these wait for."""
    items = [item("later", 2 * CHUNK), item("first", 2 * CHUNK), item("small", 10)]
    cluster = Cluster({b"later": [why, why]})
    drive(put_of(memory), items, cluster.answer)
    assert all(isinstance(each.outcome, BlockLocation) for each in items)
    assert cluster.log.index("put first") < cluster.log.index("pause")
    assert cluster.log[-1] == "put later"
    assert [len(message.names) for message in cluster.asked] == [3, 1, 1]


def test_one_that_the_master_did_not_hear_of_says_so(memory: SourceMemory) -> None:
    """No word of another client, who has nothing to do with it."""
    large = item("large", 2 * CHUNK)
    cluster = Cluster({})

    def lost(step: Step) -> object:
        reply = cluster.answer(step)
        if isinstance(reply, ReserveNamesReply) and len(cluster.asked) > 1:
            name = ReservedName(status="lost", version=9, why="not heard of")
            return ReserveNamesReply(names=[name], targets=reply.targets, chunk_bytes=CHUNK)
        if isinstance(step, AskNodes):
            put._names._renewed_s = 0.0  # as if the chunks had taken long
        return reply

    put = put_of(memory)
    drive(put, [large], lost)
    assert isinstance(large.outcome, Unavailable)
    assert large.outcome.message == "'large': not heard of"
    assert "put large" not in cluster.log, "it would be found without its chunks"
    assert cluster.released == [b"large"]


def test_all_that_is_not_sealed_is_renewed(memory: SourceMemory) -> None:
    """Also what has all its chunks and waits for those of the others: the room that it holds is lost else."""
    items = [item("whole", 2 * CHUNK), item("slow", 2 * CHUNK)]
    cluster = Cluster({})
    is_slow = True

    def slow(step: Step) -> object:
        nonlocal is_slow
        reply = cluster.answer(step)
        if isinstance(step, AskNodes) and is_slow:
            is_slow = False
            [(_, message)] = step.asked
            late = [block.object_name == b"slow" for block in message.blocks]
            replies: list[PutReply | McError] = [
                PutReply(
                    results=["exhausted" if each else "stored" for each in late],
                    why="full",
                    locations=[
                        _place(block)
                        for block, each in zip(message.blocks, late, strict=True)
                        if not each
                    ],
                )
            ]
            return replies
        return reply

    drive(put_of(memory), items, slow)
    assert [[each.name for each in message.names] for message in cluster.asked] == [
        [b"whole", b"slow"],
        [b"whole", b"slow"],
    ]
    assert all(each.version for each in cluster.asked[1].names)
