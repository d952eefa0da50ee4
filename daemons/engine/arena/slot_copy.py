"""Copying a prefix from one slot of the arena into another, layer by layer, on a thread of its own.

Whoever computes waits per layer, so that the copy overlaps the compute of other prompts and of earlier layers. It works
on the memory that peers see; the engine uploads from there, as it does with what was loaded from the pool.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from daemons.engine.arena.slots import Slot
from daemons.engine.instance import Instance

log = logging.getLogger(__name__)


class SlotCopy:
    """Tokens [0, num_tokens) of `source` into `target`; both stay until the copy has ended."""

    def __init__(self, instance: Instance, source: Slot, target: Slot, num_tokens: int) -> None:
        self.elapsed_s = 0.0
        self._instance = instance
        self._source = source
        self._target = target
        self._num_tokens = num_tokens
        self._layers_done = 0
        self._is_over = False
        self._is_writing = False
        self._changed = threading.Condition()

    def run(self) -> None:
        """On a worker. Never raises: a copy that failed is no prefix."""
        began_s = time.monotonic()
        try:
            for layer in range(self._instance.geometry.num_layers):
                if not self._begin():
                    break
                self._copy(layer)
                with self._changed:
                    if self._is_over:
                        break  # what was given up stays given up
                    self._is_writing = False
                    self._layers_done = layer + 1
                    self._changed.notify_all()
        except Exception:
            log.exception("prefix not copied")
        with self._changed:
            self.elapsed_s = time.monotonic() - began_s
            self._is_over = True
            self._is_writing = False
            self._changed.notify_all()

    @property
    def has_failed(self) -> bool:
        """It is over, and not all is there."""
        return self._is_over and self._layers_done < self._instance.geometry.num_layers

    def wait_layer(self, layer: int) -> bool:
        """Whether this layer of the prefix is in the target; returns once it is, or never will be: then nothing is
        written there any more.

        Bounded by the copies before it: moving memory always ends.
        """
        with self._changed:
            while self._layers_done <= layer and (self._is_writing or not self._is_over):
                self._changed.wait()
            return self._layers_done > layer

    def cancel(self) -> None:
        """End it after the layer that it is at."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _begin(self) -> bool:
        """Whether another layer is to be written."""
        with self._changed:
            self._is_writing = not self._is_over
            return self._is_writing

    def _copy(self, layer: int) -> None:
        half = self._instance.half
        for side in range(2):
            source = half(self._source, layer, side, self._num_tokens)
            np.copyto(half(self._target, layer, side, self._num_tokens), source)


class SlotCopier:
    """Runs copies one after the other."""

    def __init__(self, post: Callable[..., object]) -> None:
        """`post`: how a worker calls something on the loop."""
        self._post = post
        self._under_way: set[SlotCopy] = set()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="copy")

    def start(self, copy: SlotCopy, on_end: Callable[[], object]) -> None:
        """`on_end` comes on the loop once nothing is read or written any more."""

        def run() -> None:
            copy.run()
            self._under_way.discard(copy)
            self._post(on_end)

        self._under_way.add(copy)
        self._worker.submit(run)

    def close(self) -> None:
        """Whoever waits for a copy that has not begun hears that it is none."""
        for copy in list(self._under_way):
            copy.cancel()
        self._worker.shutdown(wait=True)
