"""Wiring of mc-cachenode: ports, segments, lower tiers, copy workers, handlers, link to the master."""

import logging
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from daemons.client.channel_pool import ChannelPool
from daemons.config.common import size_bytes
from daemons.config.mc_cachenode import CachenodeConfig
from daemons.core.ids import BlockHash, Incarnation, NodeId
from daemons.core.units import format_size
from daemons.mc_cachenode.copies.copy_staging import SourceStaging
from daemons.mc_cachenode.handlers import CachenodeHandlers, Parts
from daemons.mc_cachenode.lower.lower_blocks import LowerBlocks, LowerCallbacks
from daemons.mc_cachenode.lower.lower_tiers import OpenedTier, open_lower
from daemons.mc_cachenode.lower.staged_slots import SlotParts, StagedSlots
from daemons.mc_cachenode.lower.staging import Staging
from daemons.mc_cachenode.metrics import CachenodeMetrics
from daemons.mc_cachenode.ports import Ports
from daemons.mc_cachenode.replica import Replica
from daemons.mc_cachenode.reporter import ReportedTier, Reporter
from daemons.mc_cachenode.segments.segment_leaving import LeavingParts
from daemons.mc_cachenode.segments.segment_list import SegmentList
from daemons.mc_cachenode.segments.segments import SegmentParts, Segments
from daemons.mc_cachenode.segments.storage import Storage, open_storage
from daemons.protocol.block import BadReplica, BlockLocation, Tier
from daemons.protocol.node import HelloReply, NodeDescription
from daemons.protocol.replication import CopyFailed
from daemons.protocol.segment import Grant
from daemons.rpc import Call, Loop
from daemons.service.daemon import software_version
from daemons.service.data_probe import DataProbes
from daemons.service.fd_store import FdStore
from daemons.service.identity import master_endpoint, open_identity
from daemons.service.master_link import MasterLink
from daemons.service.paths import state_path
from daemons.store.promotion import Promotion
from daemons.store.segment.copy_workers import CopyWorkers
from daemons.store.segment.segment import Segment
from daemons.transfer import contiguous, host_id

log = logging.getLogger(__name__)

_DRAIN_POLL_S = 0.02
_METRICS_S = 1.0
_CUT: Final = 1
"""Exit status: systemd starts it again."""
_MAX_STAGED: Final = 8
"""This part of the segment is kept for staged blocks at most."""


class CachenodeApp:
    """Listens when built; `run` serves until drained or its loop is stopped."""

    def __init__(self, config: CachenodeConfig) -> None:
        self._config = config
        self._node = NodeId(config.node.id)
        identity = open_identity(config.security.key_file, node=self._node, role="cachenode")
        self.loop = Loop(identity=identity)
        self._metrics = CachenodeMetrics()
        self._ports = Ports(config, self.loop, self._metrics, self._hello, self._handle)
        self.endpoint = self._ports.server.endpoint
        self._known_segments = self._open_list()
        opened, self._storage = self._open_memory()
        self._replicas = self._storage.replicas
        self._workers = CopyWorkers(config.copy.workers, config.copy.max_queued_blocks)
        self._lower = {tier.tier: self._lower_blocks(tier) for tier in opened}
        for above, below in pairwise(self._lower.values()):
            below.take_from(above.store)
        self._reporter = self._make_reporter()
        self._segments = Segments(self._segment_parts())
        self._reporter.segments = self._segments.descriptions
        self._staging = self._make_staging()
        self._peers = ChannelPool(self.loop)
        self._handlers = CachenodeHandlers(self._parts())
        self._link = MasterLink(
            self.loop,
            master_endpoint(config.master.endpoint, config.security),
            self._describe,
            on_joined=self._on_joined,
            on_notice=self._handlers.on_notice,
            on_keys=self._ports.engine.admit,
        )
        self._reporter.attach(self._link)
        self._metrics.restored_blocks.set(self._replicas.num_sealed)
        for tier in opened:
            tier.store.start()
        self._segments.start()
        self.loop.every(_METRICS_S, self._measure)
        self._measure()

    def run(self) -> None:
        self.loop.run()

    def drain(self) -> None:
        """New puts are refused; those begun are finished and reported, then the node leaves.

        Of a pull that is abandoned nothing was sealed.
        """
        self._handlers.drain()
        self._wait_for_puts(self.loop.clock() + self._config.copy.drain_s)

    def status(self) -> str:
        segments = self._replicas.segments
        return (
            f"node={self._node} control={self.endpoint} blocks={self._replicas.num_sealed} "
            f"used={format_size(segments.used_bytes)} of {format_size(segments.capacity_bytes)} {self._lower_status()}"
            f"master={'joined' if self._link.is_joined else 'none'}"
        )

    def _lower_status(self) -> str:
        usage = [(name, *tier.usage()) for name, tier in self._lower.items()]
        return "".join(
            f"{name}={format_size(used)} of {format_size(capacity)} "
            for name, used, capacity in usage
        )

    def close(self) -> None:
        self._ports.server.close()
        self._link.close()
        self._peers.close()
        self._segments.close()
        self._workers.close()
        for tier in self._lower.values():
            tier.close()  # reads and fills the segment until then
        self._ports.close_data()
        self._storage.close()
        self._ports.close()
        self.loop.close()

    # Made once, at the start.

    def _open_list(self) -> SegmentList:
        """Raises ConfigError."""
        try:
            return SegmentList(state_path(self._config.node.state_dir, self._node), self._node)
        except BaseException:
            self._ports.close_data()
            raise

    def _open_memory(self) -> tuple[list[OpenedTier], Storage]:
        """Lower tiers and segments. Raises ConfigError, Exhausted."""
        config = self._config
        opened: list[OpenedTier] = []
        fd_store = FdStore()
        try:
            opened = open_lower(config, self._on_dropped, self._on_found)
            added = self._known_segments.segments
            storage = open_storage(config.segment, self._node, self._on_lost, fd_store, added)
            for dead in (each for tier in opened for each in tier.dead):
                storage.replicas.remembered.die(dead.key, dead.version, dead.at_ms)
        except BaseException:
            self._ports.close_data()  # or its socket's file stays
            for tier in opened:
                tier.store.close()
            raise
        for name in fd_store.names():  # of a segment that the config no longer has
            fd_store.forget(name)
        return opened, storage

    def _make_reporter(self) -> Reporter:
        tiers: list[ReportedTier] = [self._replicas, *self._lower.values()]
        reporter = Reporter(
            self.loop,
            tiers,
            (self._node, self._ports.epoch),
            self._config.report.interval_s,
            lambda reply: self._handlers.obey(reply),
        )
        reporter.pins = self._replicas.remembered.pins
        reporter.knows_all = lambda: all(tier.is_known for tier in self._lower.values())
        return reporter

    def _segment_parts(self) -> SegmentParts:
        return SegmentParts(
            node=self._node,
            engine=self._ports.engine,
            config=self._config.segment,
            storage=self._storage,
            known=self._known_segments,
            leaving=self._leaving_parts,
            on_changed=self._reporter.changed_segments,
        )

    def _leaving_parts(self, on_empty: Callable[[Segment], object]) -> LeavingParts:
        return LeavingParts(
            loop=self.loop,
            replicas=self._replicas,
            workers=self._workers,
            leaves_later=lambda replica: self._handlers.leaves_later(replica),
            free=lambda hashes, why: self._handlers.free(hashes, why),
            on_moved=self._reporter.sealed,
            on_empty=on_empty,
        )

    def _make_staging(self) -> Staging:
        config, capacity_bytes = self._config, self._replicas.segments.first.slots.capacity_bytes
        slots = StagedSlots(
            SlotParts(
                loop=self.loop,
                replicas=self._replicas,
                lower=[tier.store for tier in self._lower.values()],
                rates=[tier.rate for tier in self._lower.values()],
                promotion=Promotion(config.ssd.promote_uses),
                limit_bytes=min(
                    size_bytes(config.ssd.stage, "ssd.stage"), capacity_bytes // _MAX_STAGED
                ),
                keep=self._keep,
                on_promoted=self._on_promoted,
                make_room=lambda *size: self._handlers.puts.admission.make_room(*size),
            )
        )
        return Staging(self.loop, slots, locate=self._locate, grant=self._grant)

    def _parts(self) -> Parts:
        config = self._config
        return Parts(
            loop=self.loop,
            engine=self._ports.engine,
            outside=self._ports.outside,
            replicas=self._replicas,
            workers=self._workers,
            reporter=self._reporter,
            metrics=self._metrics,
            probes=DataProbes(self.loop, self._ports.engine, config.transfer.transports),
            pull_timeout_s=config.transfer.timeout_s,
            room_wait_s=config.copy.room_wait_s,
            incarnation=lambda: self._link.incarnation,
            is_joined=lambda: self._link.is_joined,
            may_evict=self._is_orphan,
            staging=self._staging,
            segments=self._segments,
            sources=SourceStaging(self.loop, self._peers),
            lower=list(self._lower.values()),
            locate=self._locate,
            copy_failed=self._on_copy_failed,
            copy_was_bad=self._on_copy_bad,
        )

    def _lower_blocks(self, opened: OpenedTier) -> LowerBlocks:
        tier = opened.tier
        return LowerBlocks(
            self.loop,
            self._replicas,
            opened,
            LowerCallbacks(
                on_sealed=lambda block_hash: self._reporter.sealed(block_hash, tier),
                on_freed=lambda block_hash, is_bad: self._reporter.freed(
                    block_hash, tier, is_bad=is_bad
                ),
                on_not_written=self._metrics.not_written.inc,
                free=lambda block_hash, why: self._handlers.free([block_hash], why),
            ),
        )

    # While it runs.

    def _wait_for_puts(self, deadline_s: float) -> None:
        is_busy = self._handlers.puts.num_puts or (
            self._link.is_joined and not self._reporter.is_idle
        )
        if is_busy and self.loop.clock() < deadline_s:
            self.loop.call_later(_DRAIN_POLL_S, self._wait_for_puts, deadline_s)
            return
        self._link.leave(self.loop.stop)

    def _is_orphan(self) -> bool:
        alone_s = self.loop.clock() - self._link.last_contact_s
        return not self._link.is_joined and alone_s >= self._config.report.orphan_after_s

    def _on_joined(self, _: Incarnation) -> None:
        self._reporter.announce()

    def _handle(self, call: Call) -> None:
        self._handlers.handle(call)

    def _hello(self) -> HelloReply:
        return HelloReply(
            node=self._node,
            role="cachenode",
            incarnation=self._link.incarnation,
            software=software_version(),
            pid=os.getpid(),
        )

    def _describe(self) -> NodeDescription:
        return self._ports.describe(self._segments.descriptions())

    def _measure(self) -> None:
        self._end_if_cut()
        self._storage.mend_indexes()
        self._reporter.refresh()
        metrics, segments, engine = self._metrics, self._replicas.segments, self._ports.engine
        metrics.used_bytes.set(segments.used_bytes)
        metrics.capacity_bytes.set(segments.capacity_bytes)
        metrics.set_segments(self._segments.states())
        metrics.blocks.set(self._replicas.num_sealed)
        metrics.index_written.set(self._storage.is_index_written)
        metrics.queued_blocks.set(self._workers.num_queued)
        metrics.bad_data_requests.set(engine.counters.bad_requests)
        metrics.sent_bytes.set(engine.counters.sent_bytes)
        metrics.staged_bytes.set(self._staging.used_bytes)
        for name, tier in self._lower.items():
            metrics.tiers[name].set(tier.store)

    def _end_if_cut(self) -> None:
        """At once: to tidy up is to look at memory that is gone, which the kernel answers with SIGBUS."""
        for segment in self._replicas.segments:
            if segment.memory.is_cut:
                log.critical(
                    "segment file cut short by somebody path=%s; ending, the next start takes an empty one",
                    segment.memory.path,
                )
                os._exit(_CUT)

    def _on_dropped(self, tier: Tier, hashes: Sequence[BlockHash], why: str) -> None:
        """On a thread of the tier, which starts once all is wired."""
        self._lower[tier].on_dropped(hashes, why)

    def _on_found(self, tier: Tier, hashes: Sequence[BlockHash]) -> None:
        """As `_on_dropped`."""
        self._lower[tier].on_found(hashes)

    def _locate(self, replica: Replica) -> BlockLocation:
        return BlockLocation(
            hash=replica.meta.hash,
            node=self._node,
            region=self._segments.region_of(replica.segment),
            offset=replica.offset,
            length=replica.length,
            trailer_bytes=replica.trailer_bytes,
            version=replica.version,
            seal_checksum=replica.seal_checksum,
            num_layers=replica.num_layers,
            host_id=host_id(),
        )

    def _grant(self, at: BlockLocation, ttl_s: float) -> Grant:
        whole = contiguous(at.offset, at.length + at.trailer_bytes)
        return self._ports.engine.grant(at.region, [whole], "read", ttl_s).grant

    def _keep(self, block_hash: BlockHash) -> None:
        for tier in self._lower.values():
            tier.write_down.keep(block_hash)

    def _on_promoted(self, block_hash: BlockHash) -> None:
        self._metrics.promoted.inc()
        self._reporter.sealed(block_hash)

    def _on_copy_failed(self, hashes: list[BlockHash], why: str) -> None:
        if self._link.is_joined:
            epoch = self._ports.epoch
            self._link.channel.post(
                CopyFailed(node=self._node, epoch=epoch, hashes=hashes, why=why)
            )

    def _on_copy_bad(self, at: BlockLocation, why: str) -> None:
        if self._link.is_joined:
            self._link.channel.post(BadReplica(hash=at.hash, node=at.node, why=why))

    def _on_lost(self, what: str, count: int) -> None:
        self._metrics.lost.labels(what).inc(count)
