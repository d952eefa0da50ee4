import os
import random
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kit.index_records import HEADER

from daemons.core.errors import Exhausted
from daemons.core.ids import BlockHash
from daemons.mc_cachenode.puts.pull import is_intact
from daemons.mc_cachenode.replica import VERSION, Replica
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.mc_cachenode.segments.storage import BlocksOf
from daemons.protocol.block import BlockMeta
from daemons.store.index import log as index_log
from daemons.store.index.files import IndexInDirectory
from daemons.store.index.format import IndexReader, replay
from daemons.store.index.log import IndexLog
from daemons.store.segment.seal import Trailer, layer_checksums, seal
from daemons.store.segment.segment import Segment
from daemons.transfer import allocate_shared, reopen_shared

CAPACITY = 12 * 4096
SLAB = 4 * 4096
LENGTHS = (3840, 4096, 12_000)
NUM_LAYERS = 6
"""`length` is always a multiple of two rows a layer."""


def meta(number: int) -> BlockMeta:
    block_hash = BlockHash(number.to_bytes(16, "big"))
    return BlockMeta(
        hash=block_hash, parent=block_hash, namespace=b"n", depth=number, num_tokens=1, model="m"
    )


def fill(replica: Replica, content: int, part: float = 1.0) -> int:
    """What a worker does, or the part of it before it is killed; the seal checksum."""
    payload = random.Random(content).randbytes(replica.length)
    end = replica.offset + replica.length
    checksums = layer_checksums(memoryview(payload), NUM_LAYERS)
    packed, checksum = seal(Trailer(replica.meta.hash, VERSION, replica.length, tuple(checksums)))
    whole = payload + packed
    size = int(len(whole) * part)
    replica.segment.view[replica.offset : replica.offset + size] = whole[:size]
    assert end + len(packed) <= CAPACITY
    return checksum


class Node:
    """Two segments, their indexes and the table, as storage.py puts them together; `kill` leaves the files as a SIGKILL
    does.
    """

    def __init__(self, directory: Path) -> None:
        self.segments = [self._open(directory / name, at) for at, name in enumerate("ab")]
        self.replicas = ReplicaTable(self.segments[0])
        self.num_lost = 0
        for segment in self.segments:
            path = directory / f"{'ab'[segment.number]}.index"
            if path.exists():
                records = list(replay(IndexReader(path.read_bytes(), HEADER)).live.values())
                self.num_lost += self.replicas.restore(records, segment)
        self.replicas.segments.add(self.segments[1])
        self.indexes = []
        for segment in self.segments:
            path = directory / f"{'ab'[segment.number]}.index"
            self.indexes.append(
                IndexLog(IndexInDirectory(path), HEADER, BlocksOf(self.replicas, segment))
            )
            self.replicas.keep_in(self.indexes[-1], segment)

    def _open(self, stem: Path, number: int) -> Segment:
        path = stem.with_suffix(".segment")
        memory = reopen_shared(path, CAPACITY) or allocate_shared("test", CAPACITY, path)
        memory.is_kept = True
        return Segment(memory, SLAB, number=number)

    def move(self, number: int, *, is_ended: bool) -> bool:
        """Raises Exhausted."""
        old = self.replicas.get(meta(number).hash)
        assert old is not None
        moved = self.replicas.begin_move(old)
        size = old.length + old.trailer_bytes
        moved.segment.view[moved.offset : moved.offset + size] = self.replicas.stored(old)
        if is_ended:
            return self.replicas.end_move(old, moved)
        self.replicas.abandon_move(old, moved)
        return False

    def put(self, number: int, length: int, content: int) -> None:
        """Raises Exhausted."""
        replica = self.replicas.begin(meta(number), length, NUM_LAYERS)
        self.replicas.seal(replica, fill(replica, content))

    def content(self, number: int) -> bytes:
        replica = self.replicas.get(meta(number).hash)
        assert replica is not None
        assert is_intact(replica)
        return bytes(replica.payload)

    def numbers(self) -> list[int]:
        return [int.from_bytes(block_hash, "big") for block_hash in self.replicas.hashes()]

    def kill(self) -> None:
        for index in self.indexes:
            index._pending.clear()
        self.close()

    def close(self) -> None:
        for index in self.indexes:
            index.close()
        for segment in self.segments:
            segment.close()


class NodeMachine(RuleBasedStateMachine):
    """Puts, frees, kills at any time: what was acknowledged is there with its bytes, what was freed stays away."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(f"/dev/shm/mct-replicas-{os.getpid()}")
        self.directory.mkdir()
        self.node = Node(self.directory)
        self.held: dict[int, bytes] = {}
        self.unsure: set[int] = set()
        """Sealed or freed since the last flush: a kill may leave the one or the other."""

    @rule(number=st.integers(1, 9), length=st.sampled_from(LENGTHS), content=st.integers(0, 99))
    def put(self, number: int, length: int, content: int) -> None:
        length -= length % (2 * NUM_LAYERS)
        if self.node.replicas.get(meta(number).hash) is not None:
            return
        try:
            self.node.put(number, length, content)
        except Exhausted:
            return
        self.held[number] = random.Random(content).randbytes(length)
        self.unsure.add(number)

    @rule(number=st.integers(1, 9))
    def free(self, number: int) -> None:
        if self.node.replicas.free(meta(number).hash):
            self.unsure.add(number)
            del self.held[number]

    @rule(number=st.integers(1, 9), is_ended=st.booleans())
    def move(self, number: int, is_ended: bool) -> None:
        if number in self.held:
            try:
                assert self.node.move(number, is_ended=is_ended) is is_ended
            except Exhausted:
                return
            self.unsure -= {number} if is_ended else set()

    @rule()
    def acknowledge(self) -> None:
        self.node.replicas.flush()
        self.unsure.clear()

    @rule(length=st.sampled_from(LENGTHS), part=st.floats(0, 1), is_slot_taken=st.booleans())
    def kill(self, length: int, part: float, is_slot_taken: bool) -> None:
        if is_slot_taken:
            length -= length % (2 * NUM_LAYERS)
            try:
                replica = self.node.replicas.begin(meta(99), length, NUM_LAYERS)
                fill(replica, 99, part)
            except Exhausted:
                pass
        self.node.kill()
        self.node = Node(self.directory)
        here = set(self.node.numbers())
        assert self.node.num_lost == 0, "nothing was damaged"
        assert here - self.unsure == self.held.keys() - self.unsure
        found = {number: self.node.content(number) for number in here}
        assert all(found[n] == self.held[n] for n in here - self.unsure)
        self.held = found
        self.unsure.clear()

    @invariant()
    def books_balance(self) -> None:
        for segment in self.node.segments:
            segment.slots.check_invariants()
        num_sealed = sum(map(self.node.replicas.num_sealed_in, self.node.segments))
        assert num_sealed == self.node.replicas.num_sealed

    def teardown(self) -> None:
        self.node.close()
        for file in self.directory.iterdir():
            file.unlink()
        self.directory.rmdir()


@pytest.fixture(autouse=True)
def _compacts_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_log, "MIN_GARBAGE", 4)
    monkeypatch.setattr(index_log, "_STEP_RECORDS", 1)


class TestNode(NodeMachine.TestCase):  # type: ignore[name-defined,misc]  # made by hypothesis
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
