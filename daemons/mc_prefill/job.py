"""One prompt on its way through a prefill node, and the rules of when its slot may go.

The slot is held by everything that reads or writes it: the model thread, the prefix load, every put in flight, and
the decode node until it said Pulled. When the last holder lets go the generation is raised and the slot is free; puts
alone hold it for a time only once others wait for room.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from daemons.core.errors import McError
from daemons.core.ids import BlockHash
from daemons.engine.arena.retained import Retained
from daemons.engine.arena.slots import Slot
from daemons.engine.instance import Instance
from daemons.mc_prefill.reuse import Reuse
from daemons.protocol.block import BlockLocation
from daemons.protocol.packed import BlockLocations
from daemons.protocol.request import LayersReady, Prefill, Timing
from daemons.rpc import Call, Timer

Holder = Literal["model", "load", "copy", "decode"] | BlockHash
"""A put in flight holds under the hash of its first block."""


class PrefixShrank(McError):
    """A reused block did not verify: the prompt starts again from a shorter prefix."""

    code = "prefix_shrank"


@dataclass(slots=True, eq=False)
class Job:
    """Loop thread, except where the model thread is named."""

    call: Call
    request: Prefill
    arrived_s: float
    slot: Slot | None = None
    reused: Reuse | None = None
    """What it need not compute; there once it has its slot."""
    kept: Retained | None = None
    """Blocks of the slot that stay when the job is gone: those it began with, once computed those of the prompt."""
    source: Retained | None = None
    """Another slot, that its first blocks are copied from."""
    began_s: float = 0.0
    """When it got its slot; what was cleared since is not kept."""
    holders: set[Holder] = field(default_factory=set)
    timer: Timer | None = None
    """Until it is answered, when whoever asked gives up; then, until when the KV is held for it."""
    is_ended: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)
    num_reused_tokens: int = 0
    num_published_blocks: int = 0
    """Offered to the pool so far."""
    computed_s: float | None = None
    sibling: Literal["none", "waiting", "sealing", "asked", "looked"] = "none"
    """Whether another prompt made some of its prefix here while it waited, and was asked for."""

    def reuse(self, matched: list[BlockLocation]) -> None:
        """Before it starts: these blocks of its prompt exist by now."""
        packed = BlockLocations.pack(matched)
        self.request = msgspec.structs.replace(self.request, matched=packed, spares=None)

    @property
    def is_running(self) -> bool:
        """It has a slot, is not computed yet, and will be."""
        return self.slot is not None and self.computed_s is None and not self.is_ended

    @property
    def has_puts(self) -> bool:
        """Some of its blocks are on their way to a cache node."""
        return not self.holders <= {"model", "load", "copy", "decode"}

    @property
    def is_only_put(self) -> bool:
        """Nothing but puts in flight holds the slot."""
        return not self.holders & {"model", "load", "copy", "decode"}

    @property
    def num_tokens(self) -> int:
        return len(self.request.tokens)

    @property
    def num_held_tokens(self) -> int:
        """Those that it did not compute because they were in the arena."""
        return 0 if self.reused is None else min(self.reused.held_tokens, self.num_reused_tokens)

    @property
    def num_to_compute(self) -> int:
        """Tokens that the plan leaves to the model; what the queue is measured in."""
        reuse = self.reused
        return self.num_tokens - (0 if reuse is None else reuse.block_tokens * reuse.num_blocks)


@dataclass(slots=True)
class JobHooks:
    """Model thread: waits for loaded layers, announces computed ones in groups worth a transfer."""

    job: Job
    instance: Instance
    start: int
    min_group_bytes: int
    on_ready: Callable[[Job, LayersReady], object]
    on_chunk: Callable[[Job, int, int], object]
    """Called when all layers of tokens [start, end) exist."""
    wait_s: float = 0.0
    _first_layer: int = 0

    def before_layer(self, layer: int) -> None:
        """Raises PrefixShrank when the prefix turned out shorter than this run assumes."""
        reuse = self.job.reused
        if reuse is None:
            return
        began_s = time.monotonic()
        good = reuse.wait_layer(layer)
        self.wait_s += time.monotonic() - began_s
        if good * reuse.block_tokens < self.start:
            raise PrefixShrank("a reused block is gone or damaged")
        if self.job.slot is not None:
            self.instance.engine.upload(self.job.slot, 0, self.start, layer)

    def after_layer(self, layer: int, start: int, end: int) -> None:
        geometry = self.instance.geometry
        if self.job.slot is not None:
            self.instance.engine.download(self.job.slot, start, end, layer)
        is_last = layer == geometry.num_layers - 1
        group_bytes = (layer - self._first_layer + 1) * geometry.layer_bytes(end - start)
        if is_last or group_bytes >= self.min_group_bytes:
            self.on_ready(
                self.job,
                LayersReady(first_layer=self._first_layer, last_layer=layer, start=start, end=end),
            )
            self._first_layer = 0 if is_last else layer + 1
        if is_last:
            self.on_chunk(self.job, start, end)

    def is_cancelled(self) -> bool:
        return self.job.cancelled.is_set()


@dataclass(frozen=True, slots=True)
class Computed:
    """What the model thread hands back."""

    job: Job
    first_token: int
    timing: Timing
