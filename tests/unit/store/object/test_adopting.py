"""Reading what another node wrote, without touching it."""

from collections.abc import Sequence

import pytest
from unit.store.object.memory_bucket import MemoryBucket
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.clock import ManualClock
from daemons.core.errors import NotFound
from daemons.core.ids import BlockHash
from daemons.core.units import KIB
from daemons.store.object import ObjectSettings, ObjectTier, manifest

SETTINGS = ObjectSettings(capacity_bytes=512 * KIB, part_bytes=64 * KIB, read_workers=0)


class Node:
    """A tier that is driven by hand."""

    def __init__(self, bucket: MemoryBucket, clock: ManualClock) -> None:
        self.clock = clock
        self.found: list[BlockHash] = []
        self.dropped: list[BlockHash] = []
        self.tier = ObjectTier(
            bucket, SETTINGS, on_dropped=self._on_dropped, on_found=self.found.extend, clock=clock
        )
        self.work()

    def put(self, *numbers: int) -> None:
        puts = [self.tier.put(*make_block(number)) for number in numbers]
        self.work()
        assert all(put.result(0) for put in puts)

    def work(self) -> None:
        self.clock.advance(1.0)
        while self.tier.run_once():
            pass
        self.tier.check_invariants()

    def _on_dropped(self, hashes: Sequence[BlockHash], _: str) -> None:
        self.dropped.extend(hashes)


@pytest.fixture
def nodes() -> tuple[Node, Node]:
    """The second may read the first's objects."""
    clock, first = ManualClock(), MemoryBucket()
    return Node(first, clock), Node(MemoryBucket(others={"first": first}), clock)


def test_what_is_adopted_is_read_and_neither_counted_nor_changed(nodes: tuple[Node, Node]) -> None:
    owner, adopter = nodes
    owner.put(0, 1, 2)
    adopter.put(2, 3)
    before = dict(owner.tier._shared.bucket.objects)  # type: ignore[attr-defined]
    used_bytes = adopter.tier.used_bytes
    adopter.tier.adopt(["first"])
    adopter.work()
    assert set(adopter.found) == {key(0), key(1)}
    assert adopter.tier.num_blocks == 4
    assert adopter.tier.used_bytes == used_bytes
    for number in range(4):
        assert adopter.tier.read(key(number)) == make_block(number)[1]
    deleted = adopter.tier.delete([key(0)])
    adopter.work()
    assert deleted.result(0)
    with pytest.raises(NotFound):
        adopter.tier.read(key(0))
    assert owner.tier._shared.bucket.objects == before  # type: ignore[attr-defined]


def test_an_owner_that_is_back_reads_for_itself(nodes: tuple[Node, Node]) -> None:
    owner, adopter = nodes
    owner.put(0, 1)
    adopter.put(3)
    adopter.tier.adopt(["first"])
    adopter.work()
    adopter.tier.adopt(["first"])  # told again, as after a new life of the master's
    adopter.work()
    assert adopter.tier.num_blocks == 3
    adopter.tier.adopt([])
    adopter.work()
    assert set(adopter.dropped) == {key(0), key(1)}
    assert adopter.tier.hashes() == [key(3)]


def test_a_store_that_fails_is_asked_for_them_again(nodes: tuple[Node, Node]) -> None:
    owner, adopter = nodes
    owner.put(0)
    bucket = owner.tier._shared.bucket
    assert isinstance(bucket, MemoryBucket)
    bucket.is_down = True
    adopter.tier.adopt(["first"])
    adopter.work()
    assert adopter.found == []
    bucket.is_down = False
    adopter.clock.advance(60.0)
    adopter.work()
    assert adopter.found == [key(0)]


def test_objects_of_a_newer_version_disturb_no_writing(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, adopter = nodes
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "FORMAT", 2)
        owner.put(0)
    adopter.tier.adopt(["first"])
    adopter.work()
    assert adopter.found == []
    adopter.put(1)
    assert adopter.tier.why_resting is None
