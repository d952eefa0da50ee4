"""Copies blocks from DRAM to a lower tier: when sealed, when evicted, or when asked for, by flush mode.

Loop thread only; the tier's writer reads the slot, which is held meanwhile. A copy that cannot be made costs a later
miss at most: the block is freed all the same when its space is wanted.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from daemons.core.errors import Conflict, Exhausted, McError, Rejected
from daemons.core.ids import BlockHash, short
from daemons.core.units import MIB
from daemons.mc_cachenode.lower.copy_down import CopyDown
from daemons.mc_cachenode.lower.lower_tiers import FlushModes
from daemons.mc_cachenode.replica import Replica
from daemons.mc_cachenode.replicas import ReplicaTable
from daemons.rpc import Loop
from daemons.store.lower import BlockRecord, LowerTier

log = logging.getLogger(__name__)

_MAX_WAITING: Final = 65_536
_RETRY_S: Final = 0.05
_SEALED_DELAY_S: Final = 0.03
_SEALED_AT_ONCE: Final = 16
_FORGET_S: Final = 60.0
"""Without a word from the operator; then what was written for the last wish may go for the next one."""
_CHECK_BYTES: Final = 8 * MIB
_GRACE_S: Final = 0.1
"""A block that is in the tier stays in DRAM for so long, for those who were told just before that it is there."""


@dataclass(slots=True)
class _Writing:
    replica: Replica
    leaves_for: str | None = None
    """Why it is freed in DRAM once it is written."""


class WriteDown:
    """`on_written(hash)` when a copy is there to stay; `free(hash, why)` when the one in DRAM may go."""

    def __init__(
        self,
        loop: Loop,
        replicas: ReplicaTable,
        tier: LowerTier,
        modes: FlushModes,
        callbacks: "WriteDownCallbacks",
    ) -> None:
        self._loop = loop
        self._replicas = replicas
        self._tier = tier
        self._modes = modes
        self._callbacks = callbacks
        self._writing: dict[BlockHash, _Writing] = {}
        self._waiting: dict[BlockHash, bool] = {}
        """Asked for by an operator, with whether to free it in DRAM then; written as the tier takes them."""
        self._is_pumping = False
        self._mark = 0
        """Of the tier when the operator began to ask; what was written for that since is not to go for what follows."""
        self._asked_s = -_FORGET_S
        self._is_full = False
        self._checked_bytes = 0
        """To be written before the next look at whether it is full."""
        self._sealed: deque[Replica] = deque()
        """To be written through."""
        self.copy_down: CopyDown | None = None
        """From the tier between DRAM and this one, where there is one."""

    @property
    def num_pending(self) -> int:
        return len(self._writing) + len(self._waiting) + len(self._sealed)

    def on_sealed(self, replica: Replica) -> None:
        """It is written a little later: whoever put it has its answer first, as have those that come right behind."""
        if self._modes.of(replica.meta.model) == "write-through":
            self._sealed.append(replica)
            if len(self._sealed) == 1:
                self._loop.call_later(_SEALED_DELAY_S, self._write_sealed)

    def _write_sealed(self) -> None:
        """Some, then whatever else waits for the loop."""
        for _ in range(min(len(self._sealed), _SEALED_AT_ONCE)):
            replica = self._sealed.popleft()
            if replica.state == "sealed":
                self._write(replica)  # a refused one is written when it is evicted
        if self._sealed:
            self._loop.call_later(0.0, self._write_sealed)

    def evict(self, replica: Replica, why: str) -> bool:
        """True: it is written first and `free` comes then. False: nothing holds it, free it now."""
        if self._modes.of(replica.meta.model) not in ("write-through", "write-back"):
            return False
        return self._write(replica, why) is None and replica.meta.hash in self._writing

    def keep(self, block_hash: BlockHash) -> None:
        """A reader is about to read it in DRAM: it does not leave this time."""
        writing = self._writing.get(block_hash)
        if writing is not None:
            writing.leaves_for = None

    def ask(self, hashes: Sequence[BlockHash], *, evict: bool) -> None:
        """Write these, as fast as the tier takes them; what is already there is only freed."""
        now_s = self._loop.clock()
        if now_s - self._asked_s >= _FORGET_S:
            self._mark, self._is_full = self._tier.mark(), False
        self._asked_s = now_s
        for block_hash in hashes:
            if len(self._waiting) < _MAX_WAITING:
                self._waiting[block_hash] = evict or self._waiting.get(block_hash, False)
        self._pump()

    def _pump(self) -> None:
        """Until the tier has enough, then again a little later."""
        self._is_pumping = False
        self._checked_bytes = 0
        while self._waiting:
            block_hash, evict = next(iter(self._waiting.items()))
            replica = self._replicas.get(block_hash)
            if self._has_no_room(block_hash):
                del self._waiting[block_hash]
                continue
            if replica is not None and replica.state == "sealed":
                is_allowed = self._modes.of(replica.meta.model) != "none"
                error = self._write(replica, "flushed" if evict else None) if is_allowed else None
            else:
                error = self.copy_down.copy(block_hash) if self.copy_down is not None else None
            if isinstance(error, Exhausted):
                self._pump_later()
                return
            del self._waiting[block_hash]

    def _has_no_room(self, block_hash: BlockHash) -> bool:
        """A block that only one written for the same wish could make room for: it stays where it is."""
        if self._tier.get(block_hash) is not None:
            return False
        if self._checked_bytes <= 0:
            was_full, self._is_full = self._is_full, self._tier.is_full_since(self._mark)
            self._checked_bytes = _CHECK_BYTES
            if self._is_full and not was_full:
                log.warning(
                    "flush stopped tier=%s why=it is full of what was flushed; what is left stays where it is",
                    self._tier.where,
                )
        return self._is_full

    def _pump_later(self) -> None:
        if not self._is_pumping:
            self._is_pumping = True
            self._loop.call_later(_RETRY_S, self._pump)

    def _write(self, replica: Replica, leaves_for: str | None = None) -> McError | None:
        """Begin, or join what has begun; the error when the tier takes nothing now."""
        begun = self._writing.get(replica.meta.hash)
        if begun is not None and begun.replica is replica:
            begun.leaves_for = begun.leaves_for or leaves_for
            return None
        try:
            done = self._tier.put(_record_of(replica), self._replicas.stored(replica))
        except (Conflict, Rejected) as error:
            log.warning(
                "block not written block=%s why=%s", short(replica.meta.hash), error.message
            )
            self._callbacks.on_not_written(1)
            return error
        except McError as error:
            if leaves_for is not None:
                self._callbacks.on_not_written(1)
            return error
        self._checked_bytes -= replica.length
        self._replicas.hold(replica)
        writing = self._writing[replica.meta.hash] = _Writing(replica, leaves_for)
        done.add_done_callback(
            lambda future: self._loop.call_soon_threadsafe(self._on_done, writing, future)
        )
        return None

    def _on_done(self, writing: _Writing, done: "Future[bool]") -> None:
        block_hash = writing.replica.meta.hash
        error = done.exception()
        if error is not None:
            log.warning("block not written block=%s why=%s", short(block_hash), error)
            self._callbacks.on_not_written(1)
        elif done.result():
            self._callbacks.on_written(block_hash)
        self._loop.call_later(_GRACE_S if error is None else 0.0, self._end, writing)

    def _end(self, writing: _Writing) -> None:
        replica = writing.replica
        if self._writing.get(replica.meta.hash) is writing:
            del self._writing[replica.meta.hash]
        if writing.leaves_for is not None and replica.state == "sealed":
            self._callbacks.free(replica.meta.hash, writing.leaves_for)
        self._replicas.release(replica)


@dataclass(frozen=True, slots=True)
class WriteDownCallbacks:
    """Loop thread."""

    on_written: Callable[[BlockHash], object]
    on_not_written: Callable[[int], object]
    free: Callable[[BlockHash, str], object]


def _record_of(replica: Replica) -> BlockRecord:
    return BlockRecord(
        meta=replica.meta,
        length=replica.length,
        num_layers=replica.num_layers,
        version=replica.version,
        seal_checksum=replica.seal_checksum,
        created_s=replica.created_ms / 1000,
    )
