"""Getting a prompt's KV into its slot: prefill computes, we pull. Loop thread only.

Three streams of bytes meet in the slot: blocks of the plan from the pool, new layers from the prefill node as it
announces them, and at the end what neither covered, which the prefill node has loaded itself.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from daemons.client.channel_pool import ChannelPool
from daemons.client.node_health import NodeHealth
from daemons.client.prefix_load import LoadTarget, PrefixLoad, PrefixLoader
from daemons.client.staging import Stager
from daemons.client.store import BlockReader
from daemons.config.mc_decode import DecodeConfig
from daemons.core.errors import McError, ProtocolError, TransferError
from daemons.engine.instance import Instance
from daemons.mc_decode.puller import Puller
from daemons.mc_decode.request import Request
from daemons.protocol.base import Message
from daemons.protocol.block import BlockLocation
from daemons.protocol.messages import Part, Reply
from daemons.protocol.packed import BlockLocations
from daemons.protocol.request import (
    Cancel,
    LayersReady,
    Prefill,
    PrefillReply,
    PrefillStarted,
    Pulled,
    Tokens,
)
from daemons.rpc import Loop

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Events:
    """What the owner of the requests is told."""

    on_first_token: Callable[[Request], object]
    """`request.reply` has come; the owner may end the request here and now."""
    on_filled: Callable[[Request], object]
    on_failed: Callable[[Request, McError], object]
    on_copied: Callable[[Request, int, int], object]
    """A copy into the slot has ended: (bytes pulled from prefill, bytes loaded from the pool)."""
    on_suspect: Callable[[BlockLocation, str], object]
    """A read from the pool failed; called on the loader's thread."""


class Filling:
    """Works on requests in state `filling`; counts its copies in `num_pulls` and the holder `load`."""

    def __init__(
        self,
        loop: Loop,
        config: DecodeConfig,
        instance: Instance,
        channels: ChannelPool,
        events: Events,
    ) -> None:
        self._loop = loop
        self._prefill_timeout_s = config.decode.prefill_timeout_s
        self._instance = instance
        self._channels = channels
        self._events = events
        timeout_s = config.transfer.timeout_s
        workers = ThreadPoolExecutor(config.decode.pull_workers, thread_name_prefix="pull")
        self._puller = Puller(loop, instance, workers, timeout_s, self._on_pulled)
        reader = BlockReader(instance.transfer, NodeHealth(on_suspect=events.on_suspect))
        self._loader = PrefixLoader(
            loop, reader, Stager(channels), num_workers=1, timeout_s=timeout_s
        )

    def start(self, request: Request) -> None:
        """The request has its slot: ask prefill for the rest, load the matched part meanwhile."""
        message, plan = request.message, request.message.plan
        is_cached = message.cache == "use" and self._instance.model.is_reuse_safe
        matched = plan.matched if is_cached else BlockLocations()
        ask = Prefill(
            request_id=message.request_id,
            model=message.model,
            namespace=message.namespace,
            tokens=message.tokens,
            hashes=message.hashes,
            sampling=message.sampling,
            matched=matched,
            put_target=plan.put_target if is_cached else None,
            cache=message.cache,
            tenant=message.tenant,
            spares=plan.spares if is_cached else None,
        )
        try:
            request.prefill = self._channels.get(plan.prefill.control).request(
                ask,
                timeout_s=self._prefill_time_s(request),
                on_reply=lambda reply: self._on_reply(request, reply),
                on_part=lambda part: self._on_part(request, part),
            )
        except McError as error:
            self._events.on_failed(request, error)
            return
        self._start_load(request, matched.unpack())

    def stop(self, request: Request) -> None:
        """Forget the prefill and let the copies end soon; they are still counted until they did."""
        if request.prefill is not None:
            request.prefill.cancel()
            self._tell_prefill(request, Cancel(request_id=request.message.request_id))
        if request.load is not None:
            request.load.cancel()

    def release_prefill(self, request: Request) -> None:
        """We need nothing more from the prefill node's slot."""
        self._tell_prefill(request, Pulled(request_id=request.message.request_id))

    def close(self) -> None:
        self._puller.close()
        self._loader.close()

    def _prefill_time_s(self, request: Request) -> float:
        """No prefill for longer than whoever asked us waits."""
        left_s = request.call.deadline_s - self._loop.clock()
        return min(self._prefill_timeout_s, max(0.001, left_s))

    def _start_load(self, request: Request, matched: list[BlockLocation]) -> None:
        slot, geometry = request.slot, self._instance.geometry
        assert slot is not None, "a request that fills has its slot"
        target = LoadTarget(
            partial(self._instance.half, slot), geometry.num_layers, geometry.block_tokens
        )
        request.load = self._loader.start(
            matched,
            request.num_prompt_tokens,
            target,
            partial(self._on_loaded, request),
            request.message.plan.spares,
        )
        if request.load is not None:
            request.holders.add("load")

    def _on_loaded(self, request: Request, load: PrefixLoad) -> None:
        request.holders.discard("load")
        self._advance(request)
        self._events.on_copied(request, 0, load.loaded_bytes)

    def _on_part(self, request: Request, part: Part) -> None:
        if request.state != "filling":
            return
        match part:
            case PrefillStarted():
                request.source, request.row_bytes = part.kv, part.bytes_per_token_row
            case LayersReady():
                self._pull(request, part)
            case Tokens():
                return

    def _on_reply(self, request: Request, reply: Reply | McError) -> None:
        if request.state != "filling":
            return
        if not isinstance(reply, PrefillReply):
            self._events.on_failed(request, _blame(request, reply))
            return
        request.reply = reply
        request.first_token_s = self._loop.clock()
        self._events.on_first_token(request)
        self._advance(request)

    def _pull(self, request: Request, ready: LayersReady) -> None:
        try:
            self._puller.pull(request, ready)
        except ProtocolError as error:
            self._events.on_failed(request, error)

    def _on_pulled(self, request: Request, num_bytes: int, error: McError | None) -> None:
        request.num_pulls -= 1
        if error is None:
            request.pulled_bytes += num_bytes
        elif request.state == "filling":
            node = request.message.plan.prefill.node
            failure = TransferError(f"KV from prefill node {node}: {error.message}")
            self._events.on_failed(request, failure)
        self._advance(request)
        self._events.on_copied(request, 0 if error else num_bytes, 0)

    def _advance(self, request: Request) -> None:
        """Something ended just now: see whether all KV is there."""
        if request.state != "filling" or request.reply is None or "load" in request.holders:
            return
        self._pull_gap(request)
        if request.state == "filling" and request.is_filled():
            request.filled_s = self._loop.clock()
            self.release_prefill(request)
            self._events.on_filled(request)

    def _pull_gap(self, request: Request) -> None:
        """What the pool did not give us and prefill did not compute, prefill has loaded."""
        if request.is_gap_pulled:
            return
        request.is_gap_pulled = True
        start, end = request.gap()
        if start < end:
            last_layer = self._instance.geometry.num_layers - 1
            self._pull(
                request, LayersReady(first_layer=0, last_layer=last_layer, start=start, end=end)
            )

    def _tell_prefill(self, request: Request, message: Message) -> None:
        """Best effort: a prefill node that does not hear it gives the slot up by its own deadline."""
        try:
            self._channels.get(request.message.plan.prefill.control).post(message)
        except McError as error:
            log.debug("prefill not told why=%s", error)


def _blame(request: Request, reply: Reply | McError) -> McError:
    """The error of a prefill that failed, naming the node: the gateway avoids it in the next attempt."""
    node = request.message.plan.prefill.node
    if isinstance(reply, McError):
        return type(reply)(
            f"prefill node {node}: {reply.message}", retry_after_ms=reply.retry_after_ms
        )
    return ProtocolError(f"prefill node {node} sent {type(reply).__name__}")
