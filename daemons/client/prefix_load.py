"""Loading a matched prefix from the pool into a KV slot, layer by layer, on a worker thread.

A block that fails to arrive or to verify shortens the prefix from there on; the layers of the blocks before it go on
loading. Whoever computes waits per layer, so loading layer k+1 overlaps computing layer k (design section 8).
"""

import threading
import time
from collections.abc import Callable, Sequence

from daemons.client.store import BlockReader
from daemons.core.errors import McError
from daemons.protocol.block import BlockLocation
from daemons.transfer import ByteArray

HalfOf = Callable[[int, int, int], ByteArray]
"""(layer, half, num_tokens) -> writable bytes of the slot."""

_GROUP_BYTES = 1 << 20


class PrefixLoad:
    """`run` once on a worker; `wait_layer` and `wait_opened` from any thread; bounded by `timeout_s` in all."""

    def __init__(
        self,
        reader: BlockReader,
        locations: Sequence[BlockLocation],
        half_of: HalfOf,
        *,
        block_tokens: int,
        timeout_s: float,
    ) -> None:
        self.block_tokens = block_tokens
        self.num_blocks = len(locations)
        """Blocks that are still good; only shrinks."""
        self.loaded_bytes = 0
        self.elapsed_s = 0.0
        self.bad: list[tuple[BlockLocation, str]] = []
        self._reader = reader
        self._locations = list(locations)
        self._half_of = half_of
        self._deadline_s = time.monotonic() + timeout_s
        self._layers_done = -1
        """-1 until the trailers were checked, then the number of layers in place."""
        self._is_over = False
        self._changed = threading.Condition()

    def wait_opened(self) -> int:
        """Blocks whose trailers verified; the number a prefill may start from."""
        return self._wait(lambda: self._layers_done >= 0)

    def wait_layer(self, layer: int) -> int:
        """Good blocks once `layer` of them is in the slot; 0 after a failure, a cancel or the deadline."""
        return self._wait(lambda: self._layers_done > layer)

    def cancel(self) -> None:
        """Stop soon; the worker may still finish the group it reads."""
        self._end(0)

    def run(self) -> None:
        """Load everything that stays good. Never raises: a failure is a shorter prefix."""
        began_s = time.monotonic()
        try:
            self._load()
        except McError as error:
            self.bad.extend((location, error.message) for location in self._locations[:1])
            self._end(0)
        finally:
            self.elapsed_s = time.monotonic() - began_s
            self._end(self.num_blocks)

    def _load(self) -> None:
        opened = self._reader.open(self._locations, timeout_s=self._left_s())
        self._shrink(opened.num_good)
        self._advance(0)
        num_layers = self._locations[0].num_layers
        step = self._layers_per_group(num_layers)
        for first in range(0, num_layers, step):
            if self._is_over or not self.num_blocks:
                return
            last = min(first + step, num_layers) - 1
            num_tokens = self.num_blocks * self.block_tokens
            targets = [
                (self._half_of(layer, 0, num_tokens), self._half_of(layer, 1, num_tokens))
                for layer in range(first, last + 1)
            ]
            good = opened.read_layers(first, targets, self.num_blocks, timeout_s=self._left_s())
            self.loaded_bytes += sum(keys.nbytes + values.nbytes for keys, values in targets)
            self._shrink(good)
            self._advance(last + 1)
        self.bad.extend(opened.bad)

    def _layers_per_group(self, num_layers: int) -> int:
        """Layers that make a range worth a transfer; the first ones must still come early."""
        location = self._locations[0]
        layer_bytes = (
            (location.length - location.trailer_bytes) * len(self._locations) // num_layers
        )
        return max(1, min(num_layers, _GROUP_BYTES // max(1, layer_bytes)))

    def _wait(self, is_ready: Callable[[], bool]) -> int:
        with self._changed:
            while not is_ready() and not self._is_over:
                if (
                    not self._changed.wait(timeout=min(1.0, self._left_s()))
                    and self._left_s() <= 0.01
                ):
                    self.num_blocks = 0
                    self._is_over = True
            return self.num_blocks if is_ready() else 0

    def _shrink(self, num_good: int) -> None:
        with self._changed:
            self.num_blocks = min(self.num_blocks, num_good)

    def _advance(self, layers_done: int) -> None:
        with self._changed:
            self._layers_done = max(self._layers_done, layers_done)
            self._changed.notify_all()

    def _end(self, num_good: int) -> None:
        with self._changed:
            self.num_blocks = min(self.num_blocks, num_good)
            self._is_over = True
            self._changed.notify_all()

    def _left_s(self) -> float:
        return max(0.01, self._deadline_s - time.monotonic())
