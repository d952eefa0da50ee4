"""Puts that wait for room: in the order they came, as long as their time goes, and never for what cannot fit."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import pytest

from daemons.client.objects.format import PIECE_BYTES, object_meta
from daemons.core.clock import ManualClock
from daemons.core.ids import Epoch, HostId, new_put_id
from daemons.mc_cachenode.puts.room_queue import RoomQueue
from daemons.mc_cachenode.puts.session import PutSession
from daemons.protocol.block import Put, PutBlock
from daemons.protocol.segment import DataAddress, RegionRef, Source
from daemons.rpc import Call, Loop
from daemons.store.segment.segment import Segment
from daemons.store.segment.segment_set import SegmentSet
from daemons.transfer import TransferEngine, contiguous

SLAB = 1 << 16
WAIT_S = 1.0
HERE = DataAddress(host_id=HostId("h"), unix_path="", tcp="", epoch=Epoch(1))
REGION = RegionRef(address=HERE, region_id=1, size_bytes=8 * SLAB)


@dataclass
class Asker:
    """Stands for a call; the queue asks it for its time alone."""

    answer_by_s: float


class Bench:
    """A node with slots for `room` blocks more."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.loop = Loop(self.clock)
        self.segment = Segment.create(4 * SLAB, slab_bytes=SLAB)
        self.room = 0
        self.tried: list[PutSession] = []
        self.settled: list[PutSession] = []
        self.queue = RoomQueue(
            self.loop,
            SegmentSet(self.segment),
            WAIT_S,
            begin=self._begin,
            settle=self.settled.append,
        )

    def put(self, num_blocks: int = 1, num_bytes: int = 8, left_s: float = 60.0) -> PutSession:
        blocks = [
            PutBlock(
                meta=object_meta(b"", b"%d" % number, num_bytes),
                source=Source(region=REGION, ranges=contiguous(0, num_bytes)),
                num_layers=1,
                version=1,
                piece_bytes=PIECE_BYTES,
            )
            for number in range(num_blocks)
        ]
        engine = cast("TransferEngine", None)
        session = PutSession(Put(put_id=new_put_id(), blocks=blocks), [], [], engine)
        session.waiting = list(range(num_blocks))
        session.why = "full"
        asker = Asker(self.clock() + left_s)
        self.queue.wait(session, cast("Call", asker))
        return session

    def make_room(self, num_blocks: int) -> None:
        self.room += num_blocks
        self.queue.on_room()
        self.run()

    def run(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.loop.run_once(0.0)
        self.loop.run_once(0.0)

    def _begin(self, session: PutSession) -> None:
        self.tried.append(session)
        taken = min(self.room, len(session.waiting))
        self.room -= taken
        session.waiting = session.waiting[taken:]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.loop.close()
    made.segment.close()


def test_the_first_that_waits_gets_room_first(bench: Bench) -> None:
    large, small = bench.put(num_blocks=3), bench.put()
    bench.make_room(2)
    assert bench.tried == [large], "the small one would fit, and does not overtake"
    assert large.waiting == [2]
    bench.make_room(2)
    assert not large.waiting
    assert not small.waiting
    assert bench.settled == [large, large, small]
    assert not large.why, "it had its room after all"


def test_it_waits_no_longer_than_its_time(bench: Bench) -> None:
    in_haste, patient = bench.put(left_s=0.5), bench.put()
    bench.run(0.6)
    assert in_haste in bench.settled
    assert not in_haste.waiting
    assert in_haste.why == "full"
    assert patient.waiting
    bench.make_room(1)
    assert not patient.waiting


def test_leases_end_without_a_word_so_it_asks_again(bench: Bench) -> None:
    session = bench.put()
    bench.room = 1
    bench.run(0.2)
    assert not session.waiting


def test_what_never_fits_does_not_wait(bench: Bench) -> None:
    session = bench.put(num_bytes=SLAB + 1)
    assert not session.waiting
    bench.make_room(1)
    assert not bench.tried


def test_too_many_do_not_wait(bench: Bench) -> None:
    first = bench.put(num_blocks=4000)
    assert first.waiting
    assert not bench.put(num_blocks=97).waiting
    assert bench.put(num_blocks=96).waiting
