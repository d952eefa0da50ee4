import errno
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from kit.full_disk import room_for
from kit.index_records import HEADER, sealed

from daemons.core.ids import BlockHash
from daemons.protocol.block import BlockFilter
from daemons.store.index import log as index_log
from daemons.store.index.files import IndexInDirectory
from daemons.store.index.format import (
    ClearedRecord,
    DeadRecord,
    IndexReader,
    PinRecord,
    SealedRecord,
    encode_header,
    replay,
)
from daemons.store.index.log import IndexLog

PINNED = [PinRecord(BlockHash(bytes(16)), True, 1_800_000_000_000, 3)]
DEAD = [DeadRecord(BlockHash(bytes(16)), 7, 1_700_000_000_000)]
CLEARED = [ClearedRecord(BlockFilter(tenant="t"), 1_700_000_000_000)]


class Slots:
    """What is live, as the owner of the slots knows it."""

    def __init__(self) -> None:
        self.records: dict[BlockHash, SealedRecord] = {}

    @property
    def num_sealed(self) -> int:
        return len(self.records)

    def hashes(self) -> Iterable[BlockHash]:
        return list(self.records)

    def record_of(self, block_hash: BlockHash) -> SealedRecord | None:
        return self.records.get(block_hash)

    def cleared(self) -> Iterable[ClearedRecord]:
        return CLEARED

    def dead(self) -> Iterable[DeadRecord]:
        return DEAD

    def pinned(self) -> Iterable[PinRecord]:
        return PINNED

    def seal(self, log: IndexLog, record: SealedRecord) -> None:
        self.records[record.block.meta.hash] = record
        log.add_sealed(record)

    def free(self, log: IndexLog, record: SealedRecord) -> None:
        del self.records[record.block.meta.hash]
        log.add_freed(record.block.meta.hash, record.block.offset)


def load(path: Path) -> dict[BlockHash, SealedRecord]:
    return replay(IndexReader(path.read_bytes(), HEADER)).live


class LogMachine(RuleBasedStateMachine):
    """Killed at any time, the file holds what was flushed; compaction, many times begun, changes nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "a.index"
        self.slots = Slots()
        self.log = IndexLog(IndexInDirectory(self.path), HEADER, self.slots)
        self.flushed: dict[BlockHash, SealedRecord] = {}

    @rule(numbers=st.lists(st.integers(1, 12), min_size=1, max_size=20), offset=st.integers(0, 99))
    def change(self, numbers: list[int], offset: int) -> None:
        for number in numbers:
            record = sealed(number, 4096 * offset)
            old = self.slots.record_of(record.block.meta.hash)
            if old is None:
                self.slots.seal(self.log, record)
            else:
                self.slots.free(self.log, old)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = dict(self.slots.records)
        assert load(self.path) == self.flushed

    @rule(cut=st.integers(0, 200))
    def kill_and_start_again(self, cut: int) -> None:
        """What was flushed no kill takes away; half a record behind it is cut off."""
        if not self.log._pending:
            cut = 0
        with self.path.open("ab") as file:
            file.write(b"".join(self.log._pending)[:cut])
        found = load(self.path)
        if cut == 0:
            assert found == self.flushed
        self.log.close = lambda: None  # type: ignore[method-assign]  # killed
        os.close(self.log._fd)
        if self.log._draft >= 0:
            os.close(self.log._draft)
        self.slots.records = found
        self.log = IndexLog(IndexInDirectory(self.path), HEADER, self.slots)
        self.flushed = dict(found)
        assert load(self.path) == found

    def teardown(self) -> None:
        self.log.close()
        self.directory.cleanup()


@pytest.fixture(autouse=True)
def _compacts_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_log, "MIN_GARBAGE", 4)
    monkeypatch.setattr(index_log, "_STEP_RECORDS", 1)


class TestLog(LogMachine.TestCase):  # type: ignore[name-defined,misc]  # made by hypothesis
    settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_file_stays_near_what_is_live(tmp_path: Path) -> None:
    slots, path = Slots(), tmp_path / "a.index"
    log = IndexLog(IndexInDirectory(path), HEADER, slots)
    for number in range(1, 4):
        slots.seal(log, sealed(number))
    largest = 0
    for number in range(10, 2000):
        slots.seal(log, sealed(number))
        log.flush()
        slots.free(log, sealed(number))
        largest = max(largest, path.stat().st_size)
    log.close()
    assert load(path) == slots.records
    assert replay(IndexReader(path.read_bytes(), HEADER)).cleared == CLEARED
    assert list(replay(IndexReader(path.read_bytes(), HEADER)).pins.values()) == PINNED
    assert largest < 60 * 200
    assert [file.name for file in tmp_path.iterdir()] == ["a.index"]


def test_frees_are_in_the_file_before_a_slot_is_handed_out(tmp_path: Path) -> None:
    slots, path = Slots(), tmp_path / "a.index"
    log = IndexLog(IndexInDirectory(path), HEADER, slots)
    slots.seal(log, sealed(1))
    log.flush_frees()
    assert not load(path), "nothing was freed, nothing needs to be written"
    slots.free(log, sealed(1))
    slots.seal(log, sealed(2))
    log.flush_frees()
    assert load(path) == slots.records
    log.close()


def test_index_that_cannot_be_written_is_removed_and_the_node_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slots, path = Slots(), tmp_path / "a.index"
    log = IndexLog(IndexInDirectory(path), HEADER, slots)
    slots.seal(log, sealed(1))
    log.flush()

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        slots.seal(log, sealed(2))
        log.flush()
    assert "make room there" in caplog.text
    assert not log.is_written
    assert not path.exists(), "a file that misses a free would claim what is gone"
    slots.free(log, sealed(2))
    log.flush()
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_index_that_was_given_up_is_written_anew_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_log, "_RETRY_RECORDS", 1)
    slots, path = Slots(), tmp_path / "a.index"
    log = IndexLog(IndexInDirectory(path), HEADER, slots)
    with room_for(path.stat().st_size + 50 * 100):
        for number in range(1, 100):
            slots.seal(log, sealed(number))
            log.flush()
        for _ in range(3 * index_log._RETRY_CALLS):
            log.retry()
            assert not log.is_written
            assert not path.exists()
        slots.free(log, sealed(7))
        log.flush_frees()
    for number in range(100, 100 + 2 * index_log._RETRY_CALLS):
        log.retry()
        slots.seal(log, sealed(number))
        slots.free(log, sealed(number - 90))
        log.flush_frees()
        if path.exists():
            assert load(path) == slots.records
    assert log.is_written
    slots.seal(log, sealed(500))
    log.flush()
    assert load(path) == slots.records
    found = replay(IndexReader(path.read_bytes(), HEADER))
    assert (found.cleared, found.dead, list(found.pins.values())) == (CLEARED, DEAD, PINNED)
    log.close()


def test_no_room_to_compact_is_no_reason_to_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots, path = Slots(), tmp_path / "a.index"
    log = IndexLog(IndexInDirectory(path), HEADER, slots)
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().name.endswith(".new"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for number in range(1, 50):
            slots.seal(log, sealed(number))
            slots.free(log, sealed(number))
            log.flush()
    assert log.is_written
    assert log.num_garbage > 50
    for number in range(1, 200):
        slots.seal(log, sealed(number))
        slots.free(log, sealed(number))
        log.flush()
    assert log.num_garbage < 20
    log.close()
    assert load(path) == {}
    assert path.stat().st_size < len(encode_header(HEADER)) + 20 * 200
