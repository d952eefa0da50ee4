"""How long the chunks of large objects stay: while they are put, and no longer."""

from types import SimpleNamespace
from typing import cast

from daemons.core.clock import ManualClock
from daemons.core.ids import BlockHash, Epoch, HostId, Incarnation, NodeId
from daemons.core.units import MIB
from daemons.mc_master.blocks.lookups import MAX_LEASE_S
from daemons.mc_master.names.chunks import Chunks
from daemons.mc_master.names.telling import Telling
from daemons.mc_master.state import MasterState
from daemons.protocol.block import BlockMeta, SealedBlock
from daemons.protocol.name_hash import chunk_key, name_key
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.store.directory.directory import Directory
from daemons.store.directory.names import NameTable
from daemons.store.directory.object_rows import OBJECT_MODEL

NODE = NodeId("a")
NAMESPACE, NAME = b"n", b"large"
KEY = name_key(NAMESPACE, NAME)
NUM_CHUNKS = 8


def block(index: int | None, version: int, *, value_bytes: int = NUM_CHUNKS * MIB) -> SealedBlock:
    """A chunk, or the object's own."""
    is_object = index is None
    meta = BlockMeta(
        hash=KEY if index is None else chunk_key(KEY, version, index),
        parent=KEY,
        namespace=NAMESPACE,
        depth=0 if index is None else index + 1,
        num_tokens=1,
        model=OBJECT_MODEL,
        name=NAME if is_object else b"",
        value_bytes=value_bytes if is_object else 0,
    )
    return SealedBlock(
        meta=meta,
        offset=0 if index is None else (index + 1) * 1000,
        length=100,
        trailer_bytes=56,
        version=version,
        seal_checksum=1,
        num_layers=1,
    )


class Bench:
    """A master that has heard of one node."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.directory = Directory()
        address = DataAddress(host_id=HostId("h"), unix_path="/u", tcp="", epoch=Epoch(1))
        region = RegionRef(address=address, region_id=1, size_bytes=1 << 40)
        self.directory.add_node(NODE, HostId("h"), region)
        state = SimpleNamespace(now_s=self.clock, directory=self.directory)
        self.names = NameTable(Incarnation(1))
        self.chunks = Chunks(cast(MasterState, state), self.names, cast(Telling, None))
        self.version = self.names.reserve(KEY, now_s=self.clock(), hold_s=60.0)

    def report(self, *indexes: int | None) -> None:
        blocks = SealedBlocks.pack([block(index, self.version) for index in indexes])
        if None in indexes:
            self.names.release(KEY, self.version)
        self.directory.record_checked(NODE, blocks, now_s=self.clock())
        self.chunks.on_recorded(blocks)

    def staying(self) -> list[int]:
        """Chunks that are leased."""
        leases, blocks = self.directory.leases, self.directory.blocks
        return [
            index
            for index in range(NUM_CHUNKS)
            if (row := blocks.row_by_hash.get(self.key_of(index))) is not None
            and leases.is_leased(row, now_s=self.clock())
        ]

    def key_of(self, index: int) -> BlockHash:
        return chunk_key(KEY, self.version, index)


def test_chunks_stay_while_they_are_put_and_may_go_once_their_object_is_whole() -> None:
    bench = Bench()
    bench.report(*range(NUM_CHUNKS))
    assert bench.staying() == list(range(NUM_CHUNKS))
    bench.report(None)
    assert bench.staying() == []


def test_chunks_that_another_node_reports_later_keep_none_of_them() -> None:
    """The object's own block may be heard of first."""
    bench = Bench()
    bench.report(1, 3, 5, 7)
    bench.report(None)
    assert bench.staying() == []
    bench.report(0, 2, 4, 6)
    assert bench.staying() == []


def test_what_is_read_stays_for_its_reader() -> None:
    bench = Bench()
    bench.report(*range(NUM_CHUNKS))
    bench.report(None)
    bench.directory.locate([bench.key_of(2)], now_s=bench.clock(), lease_s=MAX_LEASE_S)
    bench.report(None)  # as a node that joins again says it
    assert bench.staying() == [2]


def test_chunks_of_a_put_that_is_not_heard_of_may_go() -> None:
    bench = Bench()
    bench.report(0, 3)
    bench.chunks.end_put_leases(KEY, bench.version, NUM_CHUNKS * MIB)
    assert bench.staying() == []
