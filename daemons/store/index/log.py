"""A node's index on its way to the file: appended in batches, compacted piecemeal, given up when it cannot be written.

The order that makes a kill at any moment safe, without fsync, because what was written to a tmpfs outlives a process:
a block is recorded after its bytes and trailer are in the slot, and `flush`ed before anyone is told of it; a free is
`flush`ed before its slot is handed out again, and before anyone is told. So a record never names a slot that may
hold half a block; and were it lost or wrong, the trailer in the slot would not fit it.
"""

import logging
import os
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from daemons.core.ids import BlockHash
from daemons.store.index.files import IndexFiles
from daemons.store.index.format import (
    ClearedRecord,
    DeadRecord,
    FreedRecord,
    IndexHeader,
    IndexRecord,
    PinRecord,
    SealedRecord,
    encode_header,
    encode_record,
)

log = logging.getLogger(__name__)

MIN_GARBAGE = 4096
"""Records of blocks that are gone, before compaction is worth it."""
_STEP_RECORDS = 64
"""Live records copied at each flush while compacting: no flush takes long, and copying outruns appending."""


_RETRY_RECORDS = 4096
"""Copied in each call of `retry`: some 20 ms."""
_RETRY_CALLS = 10
"""From one failure to the next try."""


class LiveBlocks(Protocol):
    """Who owns the slots."""

    @property
    def num_sealed(self) -> int: ...

    def hashes(self) -> Iterable[BlockHash]:
        """Least recently sealed first."""

    def record_of(self, block_hash: BlockHash) -> SealedRecord | None:
        """None when it is not, or no longer, sealed here."""

    def cleared(self) -> Iterable[ClearedRecord]:
        """The clears that are still to be remembered."""

    def dead(self) -> Iterable[DeadRecord]:
        """The dead versions of names that are still to be remembered."""

    def pinned(self) -> Iterable[PinRecord]:
        """The pins that have not ended."""


class IndexLog:
    """Starts as a new file that replaces an old one. One thread."""

    def __init__(self, files: IndexFiles, header: IndexHeader, live: LiveBlocks) -> None:
        self._files = files
        self._header = header
        self._live = live
        self._pending: list[bytes] = []
        self._has_pending_free = False
        self._num_records = 0
        """In the file and pending; those beyond the live ones are garbage."""
        self._fd = -1
        self._draft = -1
        """The file that will replace this one; it gets every new record too."""
        self._to_copy: deque[BlockHash] = deque()
        self._num_draft_records = 0
        self._num_tombstones = 0
        """Records of clears, dead names and pins in the file that replaced the last one: no garbage."""
        self._compact_at = MIN_GARBAGE
        self._num_waits = 0
        """Calls of `retry` that do nothing."""
        self._rewrite()

    @property
    def is_written(self) -> bool:
        """False once the file could not be written: then there is none, until `retry` has made another."""
        return self._fd >= 0

    @property
    def num_garbage(self) -> int:
        return self._num_records - self._live.num_sealed - self._num_tombstones

    def add_sealed(self, record: SealedRecord) -> None:
        self._add(record)

    def add_freed(self, block_hash: BlockHash, offset: int) -> None:
        self._has_pending_free = True
        self._add(FreedRecord(block_hash, offset))

    def add_cleared(self, record: ClearedRecord) -> None:
        self._add(record)

    def add_dead(self, record: DeadRecord) -> None:
        self._add(record)

    def add_pin(self, record: PinRecord) -> None:
        self._add(record)

    def flush(self) -> None:
        """Everything added is in the file when this returns; one write, nothing when there is nothing."""
        if not self._pending or not self._is_open:
            return
        data, num_records = b"".join(self._pending), len(self._pending)
        self._pending.clear()
        self._has_pending_free = False
        try:
            if self._fd >= 0:
                _write(self._fd, data)
        except OSError as error:
            self._give_up(error)
            return
        if self._draft >= 0:
            self._compact(data, num_records)
        elif self.num_garbage > max(self._compact_at, self._live.num_sealed):
            self._compact()

    def retry(self) -> None:
        """Now and then: where the file was given up another is begun, and written a step at a time."""
        if self._fd >= 0:
            return
        self._num_waits -= 1
        if self._num_waits > 0:
            return
        self.flush()
        try:
            if self._draft < 0:
                self._begin_draft()
            self._copy_some(_RETRY_RECORDS)
        except OSError:
            self._drop_retry()
            return
        if self._fd >= 0:
            log.info(
                "index written again path=%s blocks=%d", self._files.name, self._live.num_sealed
            )

    def flush_frees(self) -> None:
        """Before a slot is handed out: it may be one whose free is still pending."""
        if self._has_pending_free:
            self.flush()

    def close(self) -> None:
        """The file stays."""
        self.flush()
        self._drop_draft()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def _is_open(self) -> bool:
        """Or was given up and is not tried again at the moment."""
        return self._fd >= 0 or self._draft >= 0

    def _add(self, record: IndexRecord) -> None:
        if self._is_open:
            self._pending.append(encode_record(record))
            self._num_records += 1

    def _rewrite(self) -> None:
        """At the start: all at once."""
        try:
            self._begin_draft()
            while self._draft >= 0:
                self._copy_some(len(self._to_copy))
        except OSError as error:
            self._give_up(error)

    def _compact(self, data: bytes = b"", num_records: int = 0) -> None:
        """Begin, or do a step after `data` went into the file. Where there is no room for two files it waits."""
        try:
            if self._draft < 0:
                self._begin_draft()
            _write(self._draft, data)
            self._num_draft_records += num_records
            self._copy_some(num_records)
        except OSError as error:
            if self._fd < 0:
                self._drop_retry()
                return
            log.warning("index not compacted path=%s why=%s", self._files.name, error.strerror)
            self._drop_draft()
            self._compact_at = 2 * self.num_garbage

    def _begin_draft(self) -> None:
        self._draft = self._files.new_draft()
        cleared = [encode_record(record) for record in self._live.cleared()]
        cleared += [encode_record(record) for record in self._live.dead()]
        cleared += [encode_record(record) for record in self._live.pinned()]
        _write(self._draft, b"".join([encode_header(self._header), *cleared]))
        self._to_copy = deque(self._live.hashes())
        self._num_draft_records = self._num_tombstones = len(cleared)

    def _copy_some(self, num_appended: int) -> None:
        """What was sealed since is in the draft already, behind; what was freed since is not live."""
        count = min(len(self._to_copy), _STEP_RECORDS + 4 * num_appended)
        found = (self._live.record_of(self._to_copy.popleft()) for _ in range(count))
        records = [encode_record(record) for record in found if record is not None]
        _write(self._draft, b"".join(records))
        self._num_draft_records += len(records)
        if not self._to_copy:
            self._end_draft()

    def _end_draft(self) -> None:
        self._files.replace(self._draft)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._draft = self._draft, -1
        self._num_records = self._num_draft_records + len(self._pending)
        self._compact_at = MIN_GARBAGE

    def _drop_draft(self) -> None:
        if self._draft >= 0:
            os.close(self._draft)
            self._draft = -1
            self._files.drop_draft()

    def _drop_retry(self) -> None:
        """There is still no room."""
        self._drop_draft()
        self._pending.clear()
        self._num_waits = _RETRY_CALLS

    def _give_up(self, error: OSError) -> None:
        """A file that misses a record could claim what is gone, so there is none until all of it is written anew."""
        log.error(
            "index given up path=%s why=%s: this node's blocks will not outlive it until it is written again; "
            "make room there",
            self._files.name,
            error.strerror,
        )
        self._num_waits = _RETRY_CALLS
        self._drop_draft()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._pending.clear()
        self._files.remove()


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
