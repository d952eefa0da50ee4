"""Reuse counters that fence late READs: the owner raises a word before it reuses what the word guards.

The words lie in a registered region, so that a puller can read them one-sided, before and after the bytes.
"""

import threading
from typing import Protocol

import numpy as np

from daemons.core.errors import TransferError
from daemons.protocol.segment import Generation, RegionRef
from daemons.transfer.memory import SharedMemory, allocate_shared


class Registers(Protocol):
    """What the table needs of a TransferEngine."""

    def register(self, memory: SharedMemory) -> RegionRef: ...

    def deregister(self, region: RegionRef) -> None: ...


class GenerationTable:
    """`num_words` counters, all 1 at first. Give each reusable source range (a slot) one index."""

    def __init__(self, engine: Registers, num_words: int) -> None:
        self._engine = engine
        self._memory = allocate_shared("mooncake-generations", max(num_words, 1) * 8)
        self._words = self._memory.array.view("<u8")
        self._words[:] = 1
        self._lock = threading.Lock()
        self._num_words = num_words
        self.region = engine.register(self._memory)

    def current(self, index: int) -> int:
        self._check(index)
        return int(self._words[index])

    def guard(self, index: int) -> Generation:
        """What to put in a Source: valid until the next `advance`."""
        return Generation(region_id=self.region.region_id, index=index, value=self.current(index))

    def advance(self, index: int) -> int:
        """Void every descriptor given out for `index`; call it before the range is written again."""
        self._check(index)
        with self._lock:
            value = int(self._words[index]) + 1
            self._words[index] = np.uint64(value)
        return value

    def close(self) -> None:
        self._engine.deregister(self.region)
        del self._words
        self._memory.close()

    def _check(self, index: int) -> None:
        if not 0 <= index < self._num_words:
            raise TransferError(f"generation index {index} is not in 0..{self._num_words - 1}")
