"""A small object is pulled at once from memory that is mapped here, and only if nothing speaks against it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from daemons.client.objects.format import FOOTER_BYTES, PIECE_BYTES, object_meta
from daemons.client.objects.source import PutMemory, SourceMemory
from daemons.core.units import MIB
from daemons.mc_cachenode.puts.pull import PullTask, is_intact, pull
from daemons.mc_cachenode.puts.pull_near import pull_near
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.protocol.block import PutBlock
from daemons.protocol.segment import Strided
from daemons.store.segment.segment import Segment
from daemons.transfer import TransferEngine, allocate_shared

VALUE = np.random.default_rng(3).integers(0, 256, 4096, np.uint8)


class Pair(NamedTuple):
    """A client's memory and a node's, each with an engine of its own."""

    source: TransferEngine
    memory: SourceMemory
    node: TransferEngine
    replicas: ReplicaTable

    def task(self, name: bytes, used: PutMemory) -> PullTask:
        source = self.memory.add(used, VALUE)
        block = PutBlock(
            meta=object_meta(b"", name, VALUE.nbytes),
            source=source,
            num_layers=1,
            version=1,
            piece_bytes=PIECE_BYTES,
            tail=bytes(range(FOOTER_BYTES)),
        )
        replica = self.replicas.begin(block.meta, VALUE.nbytes + FOOTER_BYTES, 1)
        return PullTask(block, replica)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    source, node = TransferEngine(unix_dir=tmp_path), TransferEngine(unix_dir=tmp_path)
    memory = SourceMemory(source)
    segment = Segment(allocate_shared("test-segment", 8 * MIB))
    made = Pair(source, memory, node, ReplicaTable(segment))
    used = memory.open()
    first = made.task(b"first", used)
    assert pull_near(node, first) is None, "nothing is mapped yet"
    assert pull(node, first, 20.0).seal_checksum is not None
    memory.release(used)
    yield made
    memory.close()
    source.close()
    node.close()


def test_what_is_pulled_at_once_is_what_a_worker_would_have_sealed(pair: Pair) -> None:
    task = pair.task(b"a", pair.memory.open())
    outcome = pull_near(pair.node, task)
    assert outcome
    assert outcome.seal_checksum is not None
    stored = pair.replicas.stored(task.replica)
    assert bytes(stored[:4096]) == VALUE.tobytes()
    assert bytes(stored[4096 : 4096 + FOOTER_BYTES]) == bytes(range(FOOTER_BYTES))
    pair.replicas.seal(task.replica, outcome.seal_checksum)
    assert is_intact(task.replica)
    again = pull(pair.node, task, 20.0)
    assert again.seal_checksum == outcome.seal_checksum


def test_what_came_with_the_message_is_sealed_as_a_worker_would_and_nothing_is_looked_at(
    pair: Pair,
) -> None:
    task = pair.task(b"inline", pair.memory.open())
    tail = VALUE.tobytes() + task.block.tail
    block = msgspec.structs.replace(task.block, source=pair.memory.nothing, tail=tail)
    inline = PullTask(block, task.replica)
    with TransferEngine(transports=("tcp",)) as unconnected:
        outcome = pull_near(unconnected, inline)
    assert outcome
    assert outcome.seal_checksum is not None
    assert bytes(pair.replicas.stored(task.replica)[: len(tail)]) == tail
    pair.replicas.seal(task.replica, outcome.seal_checksum)
    assert is_intact(task.replica)
    for again in (pull(pair.node, inline, 20.0), pull(pair.node, task, 20.0)):
        assert again.seal_checksum == outcome.seal_checksum


def test_a_source_that_was_given_up_is_left_to_a_worker_who_refuses_it(pair: Pair) -> None:
    used = pair.memory.open()
    task = pair.task(b"b", used)
    pair.memory.void(used)
    assert pull_near(pair.node, task) is None
    assert pull(pair.node, task, 20.0).seal_checksum is None


@pytest.mark.parametrize("offset", [-1, 64 * MIB - 4095, 1 << 40])
def test_ranges_outside_the_source_are_not_read(pair: Pair, offset: int) -> None:
    task = pair.task(b"c", pair.memory.open())
    source = msgspec.structs.replace(
        task.block.source, ranges=Strided(offset=offset, row_bytes=VALUE.nbytes)
    )
    bad = PullTask(msgspec.structs.replace(task.block, source=source), task.replica)
    assert pull_near(pair.node, bad) is None


def test_a_generation_outside_its_table_is_not_read(pair: Pair) -> None:
    task = pair.task(b"d", pair.memory.open())
    guard = task.block.source.generation
    assert guard is not None
    for index in (-1, 1024, 1 << 40):
        source = msgspec.structs.replace(
            task.block.source, generation=msgspec.structs.replace(guard, index=index)
        )
        bad = PullTask(msgspec.structs.replace(task.block, source=source), task.replica)
        assert pull_near(pair.node, bad) is None


def test_a_client_that_is_gone_is_not_pulled_from(pair: Pair, tmp_path: Path) -> None:
    other = TransferEngine(unix_dir=tmp_path)
    leaving = Pair(other, SourceMemory(other), pair.node, pair.replicas)
    first = leaving.task(b"e", leaving.memory.open())
    assert pull(pair.node, first, 20.0).seal_checksum is not None
    task = leaving.task(b"f", leaving.memory.open())
    assert pull_near(pair.node, task) is not None
    leaving.memory.close()
    other.close()
    assert pull_near(pair.node, task) is None
