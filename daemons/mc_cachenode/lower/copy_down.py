"""Copies blocks from one lower tier to the next: when asked for, and before the upper one gives them up for space.

Loop thread only; the bytes go over memory of its own, which bounds what is on its way. What cannot be copied in time is
dropped by the upper tier all the same: a later miss.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import numpy as np

from daemons.core.errors import Exhausted, McError
from daemons.core.ids import BlockHash, short
from daemons.core.units import MIB
from daemons.mc_cachenode.lower.lower_tiers import FlushModes
from daemons.rpc import Loop
from daemons.store.lower import BlockRecord, LowerTier

log = logging.getLogger(__name__)

_MAX_BYTES: Final = 64 * MIB
_DEMOTE_EVERY_S: Final = 0.5
_PAUSE_S: Final = 2.0


class CopyDown:
    """From `source` to `target`, whose flush modes they are; `on_written(hash)` when a copy is there to stay."""

    def __init__(
        self,
        loop: Loop,
        source: LowerTier,
        target: LowerTier,
        modes: FlushModes,
        on_written: Callable[[BlockHash], object],
    ) -> None:
        self._loop = loop
        self._source = source
        self._target = target
        self._modes = modes
        self._on_written = on_written
        self._copying: dict[BlockHash, int] = {}
        self._num_bytes = 0
        self._resume_s = 0.0
        """Not before: what the target refused would only be read again."""
        self._settled: set[BlockHash] = set()
        """Of those that leave next: in the target, or not to be there."""

    def start(self) -> None:
        """Copy what leaves next, from now on."""
        self._loop.every(_DEMOTE_EVERY_S, self.demote)

    def demote(self) -> None:
        """As much of it as may be on its way at once."""
        if self._target.why_resting is not None or self._loop.clock() < self._resume_s:
            return
        leaving = self._source.leaving()
        self._settled.intersection_update(leaving)
        for block_hash in leaving:
            if block_hash in self._settled or block_hash in self._copying:
                continue
            record = self._source.get(block_hash)
            mode = "none" if record is None else self._modes.of(record.meta.model)
            if mode in ("manual", "none") or self._target.get(block_hash) is not None:
                self._settled.add(block_hash)
            elif self.copy(block_hash) is not None:
                return

    def copy(self, block_hash: BlockHash) -> McError | None:
        """Begin, unless it is there or on its way; the error when that is impossible now."""
        record = self._source.get(block_hash)
        if record is None or block_hash in self._copying or self._target.get(block_hash):
            return None
        if self._modes.of(record.meta.model) == "none":
            return None
        if self._copying and self._num_bytes + record.stored_bytes > _MAX_BYTES:
            return Exhausted("enough is being copied", retry_after_ms=50)
        memory = memoryview(np.empty(record.stored_bytes, np.uint8).data)
        try:
            read = self._source.submit_read(block_hash, memory, reader="copy down")
        except McError as error:
            return error
        self._copying[block_hash] = record.stored_bytes
        self._num_bytes += record.stored_bytes
        read.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._on_read, record, memory, done)
        )
        return None

    def _on_read(self, record: BlockRecord, memory: memoryview, read: "Future[None]") -> None:
        error = read.exception()
        if error is not None:
            self._end(record, error)
            return
        try:
            put = self._target.put(record, memory)
        except McError as refused:
            self._end(record, refused)
            return
        put.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._on_put, record, done)
        )

    def _on_put(self, record: BlockRecord, put: "Future[bool]") -> None:
        error = put.exception()
        if error is None and put.result():
            self._on_written(record.meta.hash)
        self._end(record, error)

    def _end(self, record: BlockRecord, error: BaseException | None) -> None:
        self._num_bytes -= self._copying.pop(record.meta.hash)
        if error is not None:
            self._resume_s = self._loop.clock() + _PAUSE_S
            log.warning("block not copied down block=%s why=%s", short(record.meta.hash), error)
