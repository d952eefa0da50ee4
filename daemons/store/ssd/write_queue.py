"""What waits for the disk, in the order it will be written. Guarded by the tier's lock."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from daemons.core.ids import BlockHash
from daemons.store.lower import BlockRecord
from daemons.store.lower.waiting import begun
from daemons.store.ssd.log_writer import Append
from daemons.store.ssd.record import MAX_DELETES, RecordKind, TombstoneRecord

_MAX_UNCERTAIN = 100_000
"""Beyond it every delete is logged."""


class WriteQueue:
    """Puts hold their source, so their bytes are bounded by whoever adds them; tombstones are small."""

    def __init__(self) -> None:
        self.num_bytes = 0
        """Of puts."""
        self._appends: deque[Append] = deque()
        self._pending: dict[BlockHash, Append] = {}
        """Puts that wait or are being written, and were not deleted since."""
        self.evicting: set[BlockHash] = set()
        """Out of the index, with a file that is not gone for good."""
        self._uncertain: set[BlockHash] = set()
        """Their put failed, yet something of it may be on disk."""
        self._num_tombstones = 0
        """That wait or are being written."""

    def __len__(self) -> int:
        return len(self._appends)

    @property
    def is_idle(self) -> bool:
        """Nothing waits or is being written."""
        return not self._appends and not self._pending and not self._num_tombstones

    @property
    def next_room_bytes(self) -> int:
        """That the record needs which must be written next."""
        return self._appends[0].room_bytes if self._appends else 0

    def pending(self, block_hash: BlockHash) -> Append | None:
        return self._pending.get(block_hash)

    @property
    def tombstones(self) -> list[TombstoneRecord]:
        """That are not on disk; all of them between batches."""
        return [
            append.record for append in self._appends if isinstance(append.record, TombstoneRecord)
        ]

    def add(self, append: Append) -> None:
        self._appends.append(append)
        if isinstance(append.record, BlockRecord):
            self._pending[append.record.meta.hash] = append
            self.num_bytes += append.num_bytes
        else:
            self._num_tombstones += 1

    def add_deletes(self, hashes: Sequence[BlockHash]) -> "Future[bool]":
        """The last record's future stands for all, for they are written in order."""
        done = begun()
        if not hashes:
            done.set_result(True)
            return done
        for start in range(0, len(hashes), MAX_DELETES):
            part = tuple(hashes[start : start + MAX_DELETES])
            is_last = start + MAX_DELETES >= len(hashes)
            self.add(
                Append(TombstoneRecord(RecordKind.DELETES, 0, part), done=done if is_last else None)
            )
        return done

    def add_bad(self, block_hash: BlockHash, sequence: int) -> None:
        """A delete of what was written up to then: earlier versions must not come back, a newer put may wait here."""
        self.add(Append(TombstoneRecord(RecordKind.DELETES, sequence + 1, (block_hash,))))

    def cancel(self, block_hash: BlockHash) -> bool:
        """Whether a put was waiting or being written; it will not be stored."""
        pending = self._pending.pop(block_hash, None)
        if pending is not None:
            pending.is_cancelled = True
        return pending is not None

    def cancel_namespace(self, namespace: bytes | None) -> None:
        for block_hash, pending in list(self._pending.items()):
            assert isinstance(pending.record, BlockRecord)
            if namespace in (None, pending.record.meta.namespace):
                self.cancel(block_hash)

    def may_return(self, block_hash: BlockHash) -> bool:
        """Whether a block that is not in the index could be found after a crash: an earlier delete of it is not on
        disk yet, a put failed, or the file it was evicted with is not gone for good.
        """
        is_uncertain = block_hash in self._uncertain or len(self._uncertain) > _MAX_UNCERTAIN
        return is_uncertain or self._num_tombstones > 0 or block_hash in self.evicting

    def take(self, room: int, batch_bytes: int) -> tuple[list[Append], list[Append]]:
        """What goes to the disk together: it fits in `room`, and exceeds `batch_bytes` only if it is one record.

        Beside it puts that were cancelled and are not written.
        """
        batch: list[Append] = []
        cancelled: list[Append] = []
        left = min(room, batch_bytes)
        while self._appends:
            append = self._appends[0]
            size = append.room_bytes
            if append.is_cancelled:
                cancelled.append(append)
            elif size <= left or (not batch and size <= room):
                batch.append(append)
                left -= size
            else:
                break
            self._appends.popleft()
            if isinstance(append.record, BlockRecord):
                self.num_bytes -= append.num_bytes
        return batch, cancelled

    def written(self, append: Append) -> bool:
        """It is on disk. False for a put that was deleted meanwhile."""
        if isinstance(append.record, TombstoneRecord):
            self._uncertain.difference_update(append.record.keys)
            self._num_tombstones -= 1
        elif not append.is_cancelled:
            del self._pending[append.record.meta.hash]
        return not append.is_cancelled

    def fail(self, batch: list[Append]) -> list[Append]:
        """`batch` was not written. All puts leave, tombstones stay to be tried again; the one returned, the others
        without their futures, as the caller fails those of all.
        """
        failed = [*batch, *self._appends]
        for append in batch:
            if isinstance(append.record, BlockRecord):
                self._uncertain.add(append.record.meta.hash)
        self._appends = deque(
            Append(append.record) for append in failed if isinstance(append.record, TombstoneRecord)
        )
        self._num_tombstones = len(self._appends)
        self._pending.clear()
        self.num_bytes = 0
        return failed

    def check_invariants(self) -> None:
        """For tests, between batches."""
        puts = [append for append in self._appends if isinstance(append.record, BlockRecord)]
        assert self._num_tombstones == len(self._appends) - len(puts)
        assert self.num_bytes == sum(append.num_bytes for append in puts)
        assert [append for append in puts if not append.is_cancelled] == list(
            self._pending.values()
        )
