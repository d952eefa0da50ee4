"""What a tier below DRAM offers the node, whatever it is made of: an SSD's log files or an object store."""

from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from typing import Protocol

from daemons.core.ids import BlockHash
from daemons.store.ssd import BlockRecord


class LowerTier(Protocol):
    """Blocks by hash, verified when they are read, found again after every start. Any thread; nothing here waits."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def used_bytes(self) -> int:
        """With what is garbage and not reclaimed yet."""

    @property
    def capacity_bytes(self) -> int: ...

    @property
    def why_resting(self) -> str | None:
        """Why puts or reads are refused now; None when they are not."""

    def counts(self) -> dict[str, int]:
        """What happened since the start, by kind."""

    def put(self, block: BlockRecord, source: memoryview) -> "Future[bool]":
        """True when it is there to stay, False when it was deleted before. `source` (payload, trailer) stays until
        then. Raises Exhausted when too much waits, Unavailable, Conflict, Rejected; the future raises likewise.
        """

    def delete(self, hashes: Sequence[BlockHash]) -> "Future[bool]":
        """Gone for readers when this returns, for good when the future is done. Raises Unavailable after `close`."""

    def get(self, block_hash: BlockHash) -> BlockRecord | None:
        """Only looks: no sign of use."""

    def hashes(self) -> list[BlockHash]: ...

    def leaving(self) -> list[BlockHash]:
        """What it will give up next for space; empty while there is enough, and where nothing lies below it."""

    def submit_read(
        self, block_hash: BlockHash, target: memoryview, *, reader: Hashable = None
    ) -> "Future[None]":
        """Fill `target` with payload and trailer, verified. Raises Exhausted; the future also NotFound, Unavailable,
        BadSeal (the block is then gone).
        """

    def start(self) -> None: ...

    def close(self) -> None:
        """Afterwards no source is read and no target is written."""
