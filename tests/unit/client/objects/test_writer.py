"""The rules of a put, driven step by step: what a caller is told when the time was not enough."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from daemons.client.objects.format import ValueType
from daemons.client.objects.parts import Item
from daemons.client.objects.source import SourceMemory
from daemons.client.objects.steps import AskMaster, AskNodes, Step
from daemons.client.objects.writer import ObjectPut
from daemons.core.errors import Unavailable
from daemons.core.ids import NodeId
from daemons.protocol.base import Ok
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


def test_a_put_that_ran_out_of_time_tells_the_whole_of_it(memory: SourceMemory) -> None:
    """The last try has only what is left, so its own account of the time says nothing."""
    item = Item(b"weights", np.zeros(10, np.uint8), ValueType())
    put = ObjectPut(memory, b"", replaces=False, is_same=lambda _at, _item: True, timeout_s=0.2)
    steps = put.run([item])
    step: Step | None = next(steps)
    while step is not None:
        try:
            step = steps.send(answer(step))
        except StopIteration:
            step = None
    assert isinstance(item.outcome, Unavailable)
    assert item.outcome.message == (
        "'weights' could not be put within 0.2 s; the last try: tcp://h:1 did not answer within 0.027 s"
    )
