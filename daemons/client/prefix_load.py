"""Loading a matched prefix from the pool into a KV slot, layer by layer, on a worker thread.

Blocks of slower tiers are staged first. A block of which no replica arrives and verifies shortens the prefix from there
on; the layers of the blocks before it go on loading. Whoever computes waits per layer, so loading layer k+1 overlaps
computing layer k (design section 8).
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from daemons.client.staging import Stager, Staging, needs_staging
from daemons.client.store import BlockReader, OpenedBlocks
from daemons.core.errors import McError
from daemons.protocol.block import BlockLocation
from daemons.protocol.lookup import Spares
from daemons.rpc import Loop
from daemons.transfer import ByteArray

log = logging.getLogger(__name__)

_GROUP_BYTES = 1 << 20
_STAGING_PART = 0.7
"""Of the time that a load has, for blocks to come up from a slower tier."""


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The slot a prefix goes into."""

    half_of: Callable[[int, int, int], ByteArray]
    """(layer, half, num_tokens) -> writable bytes of the slot."""
    num_layers: int
    block_tokens: int


class PrefixLoader:
    """A few worker threads that load prefixes. Loop thread only, but for the work itself."""

    def __init__(
        self,
        loop: Loop,
        reader: BlockReader,
        stager: Stager,
        *,
        num_workers: int,
        timeout_s: float,
    ) -> None:
        self._loop = loop
        self._reader = reader
        self._stager = stager
        self._is_closed = False
        self._timeout_s = timeout_s
        self._workers = ThreadPoolExecutor(num_workers, thread_name_prefix="load")

    def start(
        self,
        matched: Sequence[BlockLocation],
        num_tokens: int,
        target: LoadTarget,
        on_loaded: Callable[["PrefixLoad"], object],
        spares: Spares | None = None,
    ) -> "PrefixLoad | None":
        """None when nothing of a prompt of `num_tokens` can be reused; else `on_loaded` comes exactly once on the
        loop, when nothing is written into the slot any more.
        """
        # The last token is always computed: its logits choose the first token of the answer.
        usable = min(len(matched), (num_tokens - 1) // target.block_tokens)
        if usable <= 0:
            return None
        load = PrefixLoad(self._reader, matched[:usable], target, self._timeout_s, spares)
        if needs_staging(matched[:usable]):
            self._stage(load, matched[:usable], on_loaded)
        else:
            self._submit(load, None, on_loaded)
        return load

    def _stage(
        self,
        load: "PrefixLoad",
        locations: Sequence[BlockLocation],
        on_loaded: Callable[["PrefixLoad"], object],
    ) -> None:
        held: list[Staging] = []

        def on_staged(staged: list[BlockLocation]) -> None:
            load.place(staged)
            # A refusal comes while it is asked for, before there is something to let go.
            self._loop.call_later(0.0, self._submit, load, held, on_loaded)

        timeout_s = _STAGING_PART * self._timeout_s
        held.append(self._stager.stage(locations, timeout_s=timeout_s, on_staged=on_staged))

    def _submit(
        self,
        load: "PrefixLoad",
        held: list[Staging] | None,
        on_loaded: Callable[["PrefixLoad"], object],
    ) -> None:
        def run() -> None:
            load.run()
            self._loop.call_soon_threadsafe(end)

        def end() -> None:
            for staging in held or ():
                staging.release()
            on_loaded(load)

        if not self._is_closed:
            self._workers.submit(run)

    def close(self) -> None:
        """Finish the loads in progress; drop those that wait."""
        self._is_closed = True
        self._workers.shutdown(wait=True, cancel_futures=True)


class PrefixLoad:
    """`run` once on a worker; `wait_layer` and `wait_opened` from any thread; bounded by `timeout_s` in all."""

    def __init__(
        self,
        reader: BlockReader,
        locations: Sequence[BlockLocation],
        target: LoadTarget,
        timeout_s: float,
        spares: Spares | None = None,
    ) -> None:
        self.block_tokens = target.block_tokens
        self.num_asked = len(locations)
        """Blocks whose place in the slot may have been written, with garbage where they are not good."""
        self.num_blocks = len(locations)
        """Blocks that are still good; only shrinks."""
        self.loaded_bytes = 0
        self.elapsed_s = 0.0
        self.bad: list[tuple[BlockLocation, str]] = []
        """Replicas whose bytes did not verify."""
        self._reader = reader
        self._locations = list(locations)
        self._spares = spares
        self._target = target
        self._deadline_s = time.monotonic() + timeout_s
        self._layers_done = -1
        """-1 until the trailers were checked, then the number of layers in place."""
        self._is_over = False
        self._is_writing = False
        self._changed = threading.Condition()

    def wait_opened(self) -> int:
        """Blocks whose trailers verified; the number a prefill may start from."""
        return self._wait(lambda: self._layers_done >= 0)

    def wait_layer(self, layer: int) -> int:
        """Good blocks once `layer` of them is in the slot; 0 after a failure, a cancel or the deadline.

        Behind the good blocks nothing is written any more when this returns: the caller may compute there.
        """
        return self._wait(lambda: self._layers_done > layer)

    def place(self, locations: Sequence[BlockLocation]) -> None:
        """Where the leading blocks are, now that they were staged; the others are missed. Before `run`."""
        with self._changed:
            self._locations = list(locations)
            self.num_blocks = min(self.num_blocks, len(locations))

    def cancel(self) -> None:
        """Stop soon; the worker may still finish the group it reads."""
        with self._changed:
            self._give_up()

    def run(self) -> None:
        """Load everything that stays good. Never raises: a failure is a shorter prefix."""
        began_s = time.monotonic()
        num_good = 0
        try:
            self._load()
            num_good = self.num_blocks
        except McError as error:
            log.warning("prefix not loaded why=%s", error.message)
        except Exception:
            log.exception("prefix load failed")
        with self._changed:
            self.elapsed_s = time.monotonic() - began_s
            self.num_blocks = min(self.num_blocks, num_good)
            self._is_writing = False
            self._is_over = True
            self._changed.notify_all()

    def _load(self) -> None:
        opened = self._reader.open(self._locations, spares=self._spares, timeout_s=self._left_s())
        try:
            self._end_group(0, opened.num_good if self._fits(opened) else 0)
            step = self._layers_per_group(opened)
            for first in range(0, self._target.num_layers, step):
                num_blocks = self._begin_group()
                if not num_blocks:
                    return
                last = min(first + step, self._target.num_layers)
                self._end_group(last, self._read(opened, first, last, num_blocks))
        finally:
            self.bad.extend(opened.bad)

    def _read(self, opened: OpenedBlocks, first: int, last: int, num_blocks: int) -> int:
        """Layers [first, last); how many blocks are good after it."""
        half_of, num_tokens = self._target.half_of, num_blocks * self.block_tokens
        targets = [
            (half_of(layer, 0, num_tokens), half_of(layer, 1, num_tokens))
            for layer in range(first, last)
        ]
        good = opened.read_layers(first, targets, num_blocks, timeout_s=self._left_s())
        self.loaded_bytes += sum(keys.nbytes + values.nbytes for keys, values in targets)
        return good

    def _fits(self, opened: OpenedBlocks) -> bool:
        """Blocks of another shape would be written over a neighbour's KV."""
        row_bytes = self._target.half_of(0, 0, self.block_tokens).nbytes
        shape = (opened.num_layers, opened.row_bytes)
        if not opened.num_good or shape == (self._target.num_layers, row_bytes):
            return True
        log.error("matched blocks are of another shape layers=%d row_bytes=%d", *shape)
        return False

    def _layers_per_group(self, opened: OpenedBlocks) -> int:
        """Layers that make a range worth a transfer; the first ones must still come early."""
        layer_bytes = 2 * opened.row_bytes * len(self._locations)
        return max(1, _GROUP_BYTES // max(1, layer_bytes))

    def _wait(self, is_ready: Callable[[], bool]) -> int:
        with self._changed:
            while not is_ready() and (self._is_writing or not self._is_over):
                self._changed.wait(timeout=min(1.0, self._left_s()))
                if time.monotonic() >= self._deadline_s:
                    self._give_up()
            return self.num_blocks if is_ready() else 0

    def _begin_group(self) -> int:
        """How many blocks to read; 0 when the load is over."""
        with self._changed:
            num_blocks = 0 if self._is_over else self.num_blocks
            self._is_writing = num_blocks > 0
            return num_blocks

    def _end_group(self, layers_done: int, num_good: int) -> None:
        with self._changed:
            self._is_writing = False
            self.num_blocks = min(self.num_blocks, num_good)
            self._layers_done = layers_done
            self._changed.notify_all()

    def _give_up(self) -> None:
        """With the lock held."""
        self.num_blocks = 0
        self._is_over = True
        self._changed.notify_all()

    def _left_s(self) -> float:
        return max(0.01, self._deadline_s - time.monotonic())
