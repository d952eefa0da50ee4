"""Staging over a tier whose reads the test ends: who shares a slot, who waits for one, what stays and what is freed."""

from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest

from daemons.core.clock import ManualClock
from daemons.core.errors import Unavailable
from daemons.core.ids import BlockHash, Epoch, HostId, NodeId, StageId
from daemons.mc_cachenode.lower.staged_slots import SlotParts, StagedSlots
from daemons.mc_cachenode.lower.staging import Staging
from daemons.mc_cachenode.replica import Replica
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.protocol.block import BlockLocation, BlockMeta
from daemons.protocol.segment import DataAddress, Grant, RegionRef
from daemons.protocol.tiers import Stage, StageReply
from daemons.rpc import Loop
from daemons.store.lower import BlockRecord
from daemons.store.promotion import Promotion
from daemons.store.read_rate import ReadRate
from daemons.store.segment.segment import Segment

LENGTH = 100_000
SLOT = LENGTH + 64
A, B, C = (BlockHash(bytes([number]) * 16) for number in range(1, 4))


@dataclass
class MemoryTier:
    """Keeps records; a read ends when the test says so."""

    records: dict[BlockHash, BlockRecord] = field(default_factory=dict)
    reads: list[tuple[BlockHash, "Future[None]"]] = field(default_factory=list)
    num_blocks = used_bytes = capacity_bytes = 0
    why_resting: str | None = None

    def add(self, block_hash: BlockHash) -> None:
        meta = BlockMeta(
            hash=block_hash, parent=block_hash, namespace=b"", depth=0, num_tokens=1, model="m"
        )
        self.records[block_hash] = BlockRecord(meta, LENGTH, 1, 1, 7, 1000.0)

    def get(self, block_hash: BlockHash) -> BlockRecord | None:
        return self.records.get(block_hash)

    def submit_read(
        self, block_hash: BlockHash, target: memoryview, *, reader: Hashable = None
    ) -> "Future[None]":
        assert len(target) >= LENGTH
        assert reader
        done: Future[None] = Future()
        self.reads.append((block_hash, done))
        return done

    def finish(self, error: Exception | None = None) -> None:
        """All reads that were begun."""
        reads, self.reads = self.reads, []
        for _, done in reads:
            done.set_exception(error) if error else done.set_result(None)


class Asker:
    """Stands for a call of a reader."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.answer_by_s = deadline_s - 0.05
        self.owner = None
        self.replies: list[StageReply] = []

    def reply(self, message: StageReply) -> None:
        self.replies.append(message)

    @property
    def found(self) -> list[bool]:
        (reply,) = self.replies
        return [location is not None for location in reply.locations]


class Bench:
    def __init__(self, max_slots: int = 2, min_uses: int = 2) -> None:
        self.clock = ManualClock()
        self.loop = Loop(self.clock)
        self.replicas = ReplicaTable(Segment.create(1 << 20))
        self.tier = MemoryTier()
        self.rate = ReadRate()
        self.promoted: list[BlockHash] = []
        self.num_stages = 0
        slots = StagedSlots(
            SlotParts(
                loop=self.loop,
                replicas=self.replicas,
                lower=[self.tier],  # type: ignore[list-item]  # what staging uses of it
                rates=[self.rate],
                promotion=Promotion(min_uses),
                limit_bytes=max_slots * SLOT,
                keep=lambda _: None,
                on_promoted=self.promoted.append,
            )
        )
        self.staging = Staging(self.loop, slots, locate=_locate, grant=_grant)
        for block_hash in (A, B, C):
            self.tier.add(block_hash)

    def fill_dram(self) -> None:
        """Until nothing is to stay there that was used once."""
        meta = self.tier.records[A].meta
        number = 100
        while self.replicas.usage()[0] + LENGTH < self.replicas.usage()[1]:
            own = BlockHash(bytes([number]) * 16)
            number += 1
            block = BlockMeta(
                hash=own, parent=own, namespace=b"", depth=0, num_tokens=1, model=meta.model
            )
            self.replicas.seal(self.replicas.begin(block, LENGTH, 1), 9)

    def stage(
        self, hashes: Sequence[BlockHash], *, wait_s: float = 5.0, hold_ms: int = 30_000
    ) -> tuple[Asker, StageId]:
        self.num_stages += 1
        asker = Asker(self.clock() + wait_s)
        stage_id = StageId(self.num_stages.to_bytes(16, "big"))
        message = Stage(stage_id=stage_id, hashes=list(hashes), hold_ms=hold_ms)
        self.staging.stage(asker, message)  # type: ignore[arg-type]  # what staging uses of a call
        return asker, stage_id

    def finish(self, error: Exception | None = None) -> None:
        self.tier.finish(error)
        self.loop.run_once(0)
        self.loop.run_once(0)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.loop.run_once(0)


def _grant(at: BlockLocation, ttl_s: float) -> Grant:
    expires_ms = round(1000 * ttl_s)
    return Grant(operation="read", ranges=[], expires_ms=expires_ms, generation=None, mac=at.hash)


def _locate(replica: Replica) -> BlockLocation:
    address = DataAddress(host_id=HostId("h"), unix_path="/u", tcp="", epoch=Epoch(1))
    return BlockLocation(
        hash=replica.meta.hash,
        node=NodeId("n"),
        region=RegionRef(address=address, region_id=1, size_bytes=1 << 20),
        offset=replica.offset,
        length=replica.length,
        trailer_bytes=replica.trailer_bytes,
        version=replica.version,
        seal_checksum=replica.seal_checksum,
        num_layers=replica.num_layers,
    )


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.loop.close()


def test_readers_of_one_block_share_one_read_and_one_slot(bench: Bench) -> None:
    first, one = bench.stage([A])
    second, two = bench.stage([A])
    assert len(bench.tier.reads) == 1
    assert not first.replies
    bench.finish()
    assert first.found == second.found == [True]
    assert first.replies == second.replies
    bench.staging.unstage(one)
    assert bench.staging.num_staged == 1
    bench.staging.unstage(two)
    assert bench.staging.num_staged == 0
    assert bench.staging.used_bytes == 0


def test_with_room_to_spare_what_was_read_stays_with_its_age(bench: Bench) -> None:
    _, held = bench.stage([A])
    bench.finish()
    bench.staging.unstage(held)
    assert bench.promoted == [A]
    replica = bench.replicas.get(A)
    assert replica is not None
    assert (replica.state, replica.created_ms) == ("sealed", 1_000_000)


def test_in_full_memory_only_what_is_used_again_stays(bench: Bench) -> None:
    bench.fill_dram()
    for num_promoted in (0, 1):
        _, held = bench.stage([A])
        bench.finish()
        bench.staging.unstage(held)
        assert len(bench.promoted) == num_promoted
    assert bench.staging.used_bytes == 0


def test_a_reader_waits_for_a_slot_that_another_holds(bench: Bench) -> None:
    bench.fill_dram()
    _, one = bench.stage([A, B])
    bench.finish()
    second, _ = bench.stage([C])
    assert not second.replies
    assert not bench.tier.reads
    bench.staging.unstage(one)
    assert [block_hash for block_hash, _ in bench.tier.reads] == [C]
    bench.finish()
    assert second.found == [True]


def test_a_reader_gets_what_fits_and_does_not_wait_for_itself(bench: Bench) -> None:
    bench.fill_dram()
    asker, _ = bench.stage([A, B, C])
    bench.finish()
    assert asker.found == [True, True, False]
    assert "ssd.stage" in asker.replies[0].why


def test_the_answer_comes_before_the_deadline_with_what_is_there(bench: Bench) -> None:
    bench.fill_dram()
    _, one = bench.stage([A, B], hold_ms=60_000)
    bench.finish()
    waiting, _ = bench.stage([A, C], wait_s=1.0)
    bench.pass_time(0.97)
    assert waiting.found == [True, False]
    bench.staging.unstage(one)
    assert not bench.tier.reads, "nobody waits for it any more"


def test_a_hold_ends_with_its_time(bench: Bench) -> None:
    bench.fill_dram()
    bench.stage([A], hold_ms=1000)
    bench.finish()
    bench.pass_time(1.1)
    assert bench.staging.num_staged == 0
    assert bench.replicas.get(A) is None


def test_a_hold_that_had_to_wait_ends_with_its_time_too(bench: Bench) -> None:
    bench.fill_dram()
    _, one = bench.stage([A, B])
    bench.finish()
    bench.stage([C], hold_ms=1000)
    bench.staging.unstage(one)
    bench.finish()
    assert bench.staging.num_staged == 1
    bench.pass_time(1.1)
    assert bench.staging.num_staged == 0


def test_where_other_sizes_have_all_slabs_a_larger_slot_serves_for_the_time_of_the_read(
    bench: Bench,
) -> None:
    replicas = bench.replicas
    own = BlockHash(bytes([100]) * 16)
    block = BlockMeta(hash=own, parent=own, namespace=b"", depth=0, num_tokens=1, model="m")
    replicas.seal(replicas.begin(block, replicas.segments.capacity_bytes // 4, 1), 9)
    asker, held = bench.stage([A])
    bench.finish()
    assert asker.found == [True]
    used_bytes = replicas.usage()[0]
    bench.staging.unstage(held)
    assert bench.promoted == [], "after a restart it would not be found in such a place"
    assert replicas.usage()[0] < used_bytes
    assert replicas.get(A) is None


def test_a_deleted_block_does_not_stay(bench: Bench) -> None:
    _, held = bench.stage([A])
    bench.finish()
    assert bench.staging.drop(A)
    bench.staging.unstage(held)
    assert bench.promoted == []
    assert bench.replicas.get(A) is None


def test_a_failed_read_is_a_miss_and_frees_its_slot(bench: Bench) -> None:
    asker, _ = bench.stage([A])
    bench.finish(Unavailable("the disk is gone"))
    assert asker.found == [False]
    assert "the disk is gone" in asker.replies[0].why
    assert bench.staging.used_bytes == 0
    assert bench.replicas.get(A) is None


def test_what_was_staged_ahead_is_handed_to_the_first_reader(bench: Bench) -> None:
    bench.fill_dram()
    bench.staging.stage_ahead([A], hold_s=60.0)
    bench.finish()
    asker, held = bench.stage([A])
    assert asker.found == [True]
    bench.staging.unstage(held)
    assert bench.staging.num_staged == 0


def test_how_fast_the_tier_is_read_is_measured_while_it_is(bench: Bench) -> None:
    bench.stage([A, B])
    bench.clock.advance(0.5)
    bench.finish()
    bench.clock.advance(100.0)
    assert bench.rate.bytes_per_s == 2 * bench.tier.records[A].stored_bytes / 0.5
