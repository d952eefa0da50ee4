"""Copies of new KV from the prefill node's slot into ours, on a few worker threads, in ranges worth a transfer."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from daemons.core.errors import McError, ProtocolError, TransferError
from daemons.engine.instance import Instance
from daemons.mc_decode.request import Request
from daemons.protocol.request import LayersReady
from daemons.protocol.segment import Source, Strided
from daemons.rpc import Loop
from daemons.transfer import Read

log = logging.getLogger(__name__)

OnPulled = Callable[[Request, int, McError | None], object]


class Puller:
    """`pull` on the loop; `on_pulled(request, bytes, error)` comes back there, once per pull."""

    def __init__(
        self,
        loop: Loop,
        instance: Instance,
        workers: ThreadPoolExecutor,
        timeout_s: float,
        on_pulled: OnPulled,
    ) -> None:
        self._loop = loop
        self._instance = instance
        self._workers = workers
        self._timeout_s = timeout_s
        self._on_pulled = on_pulled

    def pull(self, request: Request, ready: LayersReady) -> None:
        """Raises ProtocolError for ranges that are not of this prompt: they would land in another's slot."""
        source, slot = request.source, request.slot
        assert slot is not None, "a request that fills has its slot"
        if source is None or not self._fits(request, ready):
            raise ProtocolError(
                f"the prefill node announced KV that is not of this prompt: {ready}"
            )
        target = self._instance.ranges(
            slot, ready.start, ready.end, ready.first_layer, ready.last_layer
        )
        read = Read(_remote(source, request.row_bytes, ready), self._instance.memory.array, target)
        request.num_pulls += 1
        self._workers.submit(self._run, request, source, read)

    def close(self) -> None:
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _run(self, request: Request, source: Source, read: Read) -> None:
        error: McError | None = None
        try:
            self._instance.transfer.read(
                source.region, [read], generation=source.generation, timeout_s=self._timeout_s
            )
        except McError as failure:
            error = failure
        except Exception as bug:  # or its request would wait for ever
            log.exception("pull failed request=%s", request.message.request_id)
            error = TransferError(f"internal error: {type(bug).__name__}; see the log of this node")
        self._loop.call_soon_threadsafe(self._on_pulled, request, read.target.length, error)

    def _fits(self, request: Request, ready: LayersReady) -> bool:
        return (
            0 <= ready.first_layer <= ready.last_layer < self._instance.geometry.num_layers
            and 0 <= ready.start < ready.end <= request.num_prompt_tokens
        )


def _remote(source: Source, row_bytes: int, ready: LayersReady) -> Strided:
    """The part of the announced slot that `ready` names; row 2l + h is layer l, k or v."""
    whole = source.ranges
    return Strided(
        offset=whole.offset + 2 * ready.first_layer * whole.stride_bytes + ready.start * row_bytes,
        row_bytes=(ready.end - ready.start) * row_bytes,
        num_rows=2 * (ready.last_layer - ready.first_layer + 1),
        stride_bytes=whole.stride_bytes,
    )
