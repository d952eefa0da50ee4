"""Deletes of objects that the object store has not heard of yet: a file on this machine's disk, as long as it must be.

A name is on disk here before anybody is told that it is deleted or replaced; an object store that is slow or down then
brings nothing back, whatever memory is lost. A dead version is dead for ever, so no record is ever wrong: not twice,
and not after the object store has it. Records are framed like those of a node's index.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import xxhash

from daemons.core.errors import ConfigError, Exhausted
from daemons.core.ids import BlockHash
from daemons.store.directory.names import MAX_DEAD
from daemons.store.directory.tombstones import TTL_S
from daemons.store.index.format import (
    DeadRecord,
    IndexHeader,
    IndexReader,
    WrongIndex,
    encode_header,
    encode_record,
)
from daemons.store.lower.waiting import begun, fail, finish

log = logging.getLogger(__name__)

_MIN_GARBAGE: Final = 4096
"""Records that nobody needs any more, before the file is written anew."""
_RETRY_AFTER_MS: Final = 1000


class DeleteJournal:
    """Any thread; what is added together is on disk with one sync, on a thread of the journal's.

    `place` (node and bucket) is part of the file's name: where a node gets another one, what was deleted there means
    nothing here.
    """

    def __init__(
        self, directory: Path, place: str, now_s: float, max_waiting: int = MAX_DEAD
    ) -> None:
        """With what an earlier life left. Raises ConfigError."""
        name = f"object-deletes-{xxhash.xxh3_64_hexdigest(place.encode())}.log"
        self._path = directory / name
        self._header = IndexHeader(place, 0, 0)
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._fresh: list[tuple[Sequence[DeadRecord], Future[bool]]] = []
        self._waiting: dict[BlockHash, DeadRecord] = {}
        """Needed, until the object store has them."""
        self._others: dict[BlockHash, DeadRecord] = {}
        """Not of this node's objects: of those of a node that is away, perhaps. The oldest goes first."""
        self._descriptor = -1
        """None until the file is as it must be: the next record comes with a file that is written anew."""
        self._num_records = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            records = self._read()
        except OSError as error:
            raise ConfigError(
                f"{self._path}: {error.strerror}; deletes that the object store has not heard of yet are kept there: "
                "mend it, or choose another `node.state_dir`"
            ) from error
        for record in records:
            if now_s - record.at_ms / 1000 <= TTL_S:
                self._keep(record)
        self._thread = ThreadPoolExecutor(1, "mc-object-deletes")

    def names(self) -> list[DeadRecord]:
        """All that it knows of."""
        with self._lock:
            return [*self._others.values(), *self._waiting.values()]

    def waiting(self) -> list[DeadRecord]:
        """Those of them that the object store has not heard of."""
        with self._lock:
            return list(self._waiting.values())

    def is_dead(self, key: BlockHash, version: int) -> bool:
        with self._lock:
            known = self._waiting.get(key) or self._others.get(key)
        return known is not None and version <= known.version

    def add(
        self, records: Sequence[DeadRecord], elsewhere: Sequence[DeadRecord] = ()
    ) -> "Future[bool]":
        """Done when they are on disk. `elsewhere`: of objects of a node that is away. The future raises Exhausted when
        too many wait for the object store, and when the disk takes nothing.
        """
        done = begun()
        if not records and not elsewhere:
            done.set_result(True)
            return done
        with self._lock:
            if len(self._waiting) + len(records) > self._max_waiting:
                fail(done, self._full())
                return done
            for record in records:
                self._keep(record)
            self._keep_others({record.key: record for record in elsewhere})
            self._fresh.append(([*records, *elsewhere], done))
        self._thread.submit(self._commit)
        return done

    def settle(self, records: Iterable[DeadRecord]) -> None:
        """The object store has heard of these."""
        with self._lock:
            for record in records:
                if self._waiting.get(record.key) == record:
                    del self._waiting[record.key]

    def sort(self, is_here: Iterable[BlockHash]) -> None:
        """All that waits but these is of no object here."""
        with self._lock:
            here = {key: self._waiting[key] for key in is_here if key in self._waiting}
            others = {key: each for key, each in self._waiting.items() if key not in here}
            self._waiting = here
            self._keep_others(others)

    def close(self) -> None:
        """What was added is written first. The file stays."""
        self._thread.shutdown()
        self._drop_file()

    def _full(self) -> Exhausted:
        return Exhausted(
            f"{len(self._waiting)} deletes wait for the object store, which is down or slow: no more are sure to stay "
            "before it has heard of them",
            retry_after_ms=_RETRY_AFTER_MS,
        )

    def _keep(self, record: DeadRecord) -> None:
        known = self._others.pop(record.key, None) or self._waiting.get(record.key, record)
        self._waiting[record.key] = max(known, record, key=lambda each: each.version)

    def _keep_others(self, records: Mapping[BlockHash, DeadRecord]) -> None:
        self._others |= records
        while len(self._others) > self._max_waiting:
            del self._others[next(iter(self._others))]

    def _commit(self) -> None:
        """On the journal's thread: all that came meanwhile."""
        with self._lock:
            fresh, self._fresh = self._fresh, []
            known = [*self._others.values(), *self._waiting.values()]
        if not fresh:
            return
        records = [record for some, _ in fresh for record in some]
        try:
            if self._descriptor < 0 or self._num_records > 2 * len(known) + _MIN_GARBAGE:
                self._rewrite(known)
            else:
                self._append(records)
        except OSError as error:
            self._drop_file()
            log.error("object deletes not written path=%s why=%s", self._path, error.strerror)  # noqa: TRY400
            for _, done in fresh:
                fail(
                    done,
                    Exhausted(
                        f"{self._path}: cannot be written: {error.strerror}; make room there",
                        retry_after_ms=_RETRY_AFTER_MS,
                    ),
                )
            return
        for _, done in fresh:
            finish(done, True)

    def _append(self, records: Sequence[DeadRecord]) -> None:
        _write(self._descriptor, b"".join(map(encode_record, records)))
        os.fdatasync(self._descriptor)
        self._num_records += len(records)

    def _rewrite(self, records: Sequence[DeadRecord]) -> None:
        """The whole file, which takes the place of the old one once it is on disk."""
        self._drop_file()
        draft = self._path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(draft, flags, 0o600)
        try:
            _write(descriptor, encode_header(self._header) + b"".join(map(encode_record, records)))
            os.fsync(descriptor)
            draft.replace(self._path)
            _sync_directory(self._path.parent)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        self._descriptor, self._num_records = descriptor, len(records)

    def _drop_file(self) -> None:
        """After a failed write nobody knows what is in it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> list[DeadRecord]:
        """Raises OSError."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        try:
            reader = IndexReader(data, self._header)
        except WrongIndex as error:
            aside = self._path.with_suffix(".damaged")
            self._path.replace(aside)
            log.error(  # noqa: TRY400
                "object deletes damaged kept_as=%s why=%s: what was deleted last may come back",
                aside,
                error.message,
            )
            return []
        records = [record for record in reader if isinstance(record, DeadRecord)]
        if reader.num_bad_records or reader.cut_bytes:
            log.warning(
                "object deletes cut path=%s bad_records=%d cut_bytes=%d",
                self._path,
                reader.num_bad_records,
                reader.cut_bytes,
            )
        return records


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
