"""What waits to be written, and the deletes that are not there to stay yet. Guarded by the tier's lock."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from daemons.core.ids import BlockHash
from daemons.store.lower import BlockRecord
from daemons.store.object.settings import MAX_PART_BLOCKS


@dataclass(slots=True, eq=False)
class Pending:
    """A put that waits or is being written."""

    block: BlockRecord
    source: memoryview
    done: "Future[bool]"
    queued_s: float
    is_cancelled: bool = False


class PutQueue:
    """Bounded by whoever adds."""

    def __init__(self) -> None:
        self.num_bytes = 0
        """Also of what is being written: it holds its source."""
        self.waiting_bytes = 0
        self._waiting: deque[Pending] = deque()
        self._by_hash: dict[BlockHash, Pending] = {}
        self.deletes: list[Future[bool]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest_s(self) -> float | None:
        return self._waiting[0].queued_s if self._waiting else None

    def pending(self, block_hash: BlockHash) -> Pending | None:
        return self._by_hash.get(block_hash)

    def add(self, put: Pending) -> None:
        self._waiting.append(put)
        self._by_hash[put.block.meta.hash] = put
        self.num_bytes += put.block.stored_bytes
        self.waiting_bytes += put.block.stored_bytes

    def cancel(self, hashes: Sequence[BlockHash]) -> bool:
        """Whether any of them was waiting or being written; they will not be stored."""
        found = [put for each in hashes if (put := self._by_hash.pop(each, None)) is not None]
        for put in found:
            put.is_cancelled = True
        return bool(found)

    def all_pending(self) -> list[Pending]:
        """Those that are being written too, but for the cancelled among them."""
        cancelled = [put for put in self._waiting if put.is_cancelled]
        return [*self._by_hash.values(), *cancelled]

    def take(self, max_bytes: int) -> list[Pending]:
        """The next part: the oldest, as many as fit; one at least."""
        batch: list[Pending] = []
        left = max_bytes
        while self._waiting and len(batch) < MAX_PART_BLOCKS:
            size = self._waiting[0].block.stored_bytes
            if batch and size > left:
                break
            batch.append(self._waiting.popleft())
            left -= size
            self.waiting_bytes -= size
        return batch

    def end(self, batch: Sequence[Pending]) -> None:
        """Written or not, it is over with these."""
        for put in batch:
            self.num_bytes -= put.block.stored_bytes
            if not put.is_cancelled:
                del self._by_hash[put.block.meta.hash]

    def drain(self) -> list[Pending]:
        """All that wait."""
        batch = list(self._waiting)
        self._waiting.clear()
        self.waiting_bytes = 0
        self.end(batch)
        return batch
