"""Deletes that the object store has not heard of outlive all memory, whatever is left of their file."""

import os
from pathlib import Path

import pytest
from unit.store.object.memory_bucket import MemoryBucket
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.clock import ManualClock
from daemons.core.errors import Exhausted, NotFound
from daemons.core.units import KIB
from daemons.store.index.format import DeadRecord
from daemons.store.object import DeleteJournal, ObjectSettings, ObjectTier

SETTINGS = ObjectSettings(capacity_bytes=512 * KIB, part_bytes=64 * KIB, read_workers=0)
NOW_S = 1_000_000.0
NAMED = (1, 5, 9, 13)


def dead(number: int, version: int = 1) -> DeadRecord:
    return DeadRecord(key(number), version, round(NOW_S * 1000))


def opened(directory: Path, max_waiting: int = 1000, now_s: float = NOW_S) -> DeleteJournal:
    return DeleteJournal(directory, "bucket/prefix/node", now_s, max_waiting)


def numbers_in(journal: DeleteJournal) -> list[int]:
    held = {record.key for record in journal.names()}
    return [number for number in range(100) if key(number) in held]


def file_in(directory: Path) -> Path:
    (file,) = directory.glob("*.log")
    return file


def test_what_was_added_is_on_disk_when_it_is_done_and_found_by_the_next_life(
    tmp_path: Path,
) -> None:
    first = opened(tmp_path)
    waits = [first.add([dead(number)]) for number in range(10)]
    assert all(done.result(20) for done in waits)
    assert numbers_in(opened(tmp_path)) == list(range(10)), "while the first is still there"
    assert opened(tmp_path).is_dead(key(3), 1)
    assert not opened(tmp_path).is_dead(key(3), 2)
    other = DeleteJournal(tmp_path, "another/prefix/node", NOW_S)
    assert other.names() == []
    assert opened(tmp_path, now_s=NOW_S + 8 * 86400).names() == []
    first.close()


@pytest.mark.parametrize("cut", [1, 5, 11, 30])
def test_a_torn_tail_costs_its_own_records_and_none_that_follow(tmp_path: Path, cut: int) -> None:
    first = opened(tmp_path)
    for number in range(5):
        first.add([dead(number)]).result(20)
    first.close()
    file = file_in(tmp_path)
    os.truncate(file, file.stat().st_size - cut)
    second = opened(tmp_path)
    assert numbers_in(second) == [0, 1, 2, 3]
    second.add([dead(7)]).result(20)
    second.close()
    assert numbers_in(opened(tmp_path)) == [0, 1, 2, 3, 7]


def test_a_file_that_is_none_is_kept_aside(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.add([dead(1)]).result(20)
    first.close()
    file_in(tmp_path).write_bytes(b"x" * 100)
    second = opened(tmp_path)
    assert second.names() == []
    assert [file.suffix for file in tmp_path.iterdir()] == [".damaged"]


def test_a_full_disk_fails_what_waits_and_loses_nothing_of_before(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.add([dead(1)]).result(20)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, journal._descriptor, inheritable=False)
    os.close(full)
    with pytest.raises(Exhausted, match="cannot be written: No space left on device; make room"):
        journal.add([dead(5)]).result(20)
    assert numbers_in(opened(tmp_path)) == [1]
    journal.add([dead(9)]).result(20)
    assert numbers_in(opened(tmp_path)) == [1, 5, 9], "deleted all the same, so kept from now on"
    journal.close()


def test_too_many_are_refused_until_the_store_has_heard_of_some(tmp_path: Path) -> None:
    journal = opened(tmp_path, max_waiting=2)
    journal.add([dead(1), dead(5)]).result(20)
    with pytest.raises(Exhausted, match="2 deletes wait for the object store"):
        journal.add([dead(9)]).result(20)
    journal.settle([dead(1)])
    journal.add([dead(9)]).result(20)
    journal.close()


def test_the_file_does_not_grow_with_all_that_was_ever_deleted(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for round_ in range(20):
        records = [dead(number, round_ * 1000 + number) for number in range(500)]
        journal.add(records).result(20)
        journal.settle(records)
    assert file_in(tmp_path).stat().st_size < 6000 * 60
    journal.close()


class Node:
    """One life of a tier that is driven by hand; the bucket and the disk outlive it."""

    def __init__(self, bucket: MemoryBucket, directory: Path) -> None:
        self.clock = ManualClock()
        self.found: list[bytes] = []
        self.tier = ObjectTier(bucket, SETTINGS, on_found=self.found.extend, clock=self.clock)
        self.journal = opened(directory)
        self.tier.keep_deletes_in(self.journal)
        self.work()

    def put(self, *numbers: int, version: int = 1) -> None:
        puts = [self.tier.put(*make_block(number, version=version)) for number in numbers]
        self.work()
        assert all(put.result(0) for put in puts)

    def work(self) -> None:
        self.clock.advance(100.0)
        while self.tier.run_once():
            pass
        self.tier.check_invariants()


def test_what_was_deleted_while_the_store_was_down_is_not_found_by_the_next_life(
    tmp_path: Path,
) -> None:
    bucket = MemoryBucket()
    first = Node(bucket, tmp_path)
    first.put(*NAMED, 2)
    bucket.is_down = True
    assert first.tier.forget([dead(1), dead(5), dead(9, version=0), dead(77)]).result(20)
    assert {record.key for record in first.journal.waiting()} == {key(1), key(5)}
    bucket.is_down = False
    second = Node(bucket, tmp_path)
    assert set(second.found) == {key(9), key(13), key(2)}
    assert second.journal.waiting() == [], "the store has heard of them"
    assert set(Node(bucket, tmp_path / "another disk").found) == {key(9), key(13), key(2)}


def test_what_is_deleted_before_the_store_answers_is_not_found_in_it(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    Node(bucket, tmp_path).put(*NAMED)
    bucket.is_down = True
    second = Node(bucket, tmp_path)
    assert second.tier.forget([dead(1), dead(77)]).result(20)
    assert {record.key for record in second.journal.waiting()} == {key(1), key(77)}
    bucket.is_down = False
    second.work()
    assert set(second.found) == {key(5), key(9), key(13)}
    assert second.journal.waiting() == []


def test_a_replaced_version_does_not_come_back_and_the_newer_one_does(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    first = Node(bucket, tmp_path)
    first.put(1, 5)
    assert first.tier.forget([dead(1), dead(5)]).result(20)
    first.put(1, version=2)
    second = Node(bucket, tmp_path)
    assert set(second.found) == {key(1)}
    assert second.tier.read(key(1)) == make_block(1, version=2)[1]
    with pytest.raises(NotFound):
        second.tier.read(key(5))


def test_a_name_that_waits_to_be_written_is_held_off_too(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    node = Node(bucket, tmp_path)
    put = node.tier.put(*make_block(1))
    assert node.tier.forget([dead(1)]).result(20)
    assert [record.key for record in node.journal.waiting()] == [key(1)]
    node.work()
    assert put.result(0) is False
    assert node.journal.waiting() == []
    assert Node(bucket, tmp_path).found == []


def test_a_delete_of_what_the_store_never_had_writes_nothing(tmp_path: Path) -> None:
    node = Node(MemoryBucket(), tmp_path)
    assert node.tier.forget([dead(1)]).done()
    assert list(tmp_path.iterdir()) == []


def test_names_of_a_node_that_is_away_are_kept_for_it(tmp_path: Path) -> None:
    theirs = MemoryBucket()
    Node(theirs, tmp_path / "theirs").put(1, 5)
    adopter = Node(MemoryBucket(others={"away": theirs}), tmp_path)
    adopter.tier.adopt(["away"])
    adopter.work()
    assert set(adopter.found) == {key(1), key(5)}
    assert adopter.tier.forget([dead(1)]).result(20)
    adopter.work()
    later = Node(MemoryBucket(others={"away": theirs}), tmp_path)
    later.tier.adopt(["away"])
    later.work()
    assert set(later.found) == {key(5)}
    assert later.tier.dead_names() == [dead(1)], (
        "told to the master, and so to the one that is away"
    )
