"""Wiring of mc-cachenode: segment, data port, copy workers, control port, link to the master."""

import logging
import os
import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from daemons.client.channel_pool import ChannelPool
from daemons.config.common import size_bytes, topology_file
from daemons.config.mc_cachenode import CachenodeConfig
from daemons.config.secret import mark_of
from daemons.core.ids import BlockHash, Incarnation, NodeId, new_epoch
from daemons.core.units import format_size
from daemons.mc_cachenode.copy_staging import SourceStaging
from daemons.mc_cachenode.handlers import CachenodeHandlers, Parts
from daemons.mc_cachenode.lower_blocks import LowerBlocks, LowerCallbacks
from daemons.mc_cachenode.lower_tiers import OpenedTier, open_lower
from daemons.mc_cachenode.metrics import CachenodeMetrics
from daemons.mc_cachenode.replica import Replica
from daemons.mc_cachenode.reporter import ReportedTier, Reporter
from daemons.mc_cachenode.staging import Staging, StagingParts
from daemons.mc_cachenode.storage import open_storage
from daemons.protocol.block import BadReplica, BlockLocation, Tier
from daemons.protocol.node import HelloReply, NodeDescription, SegmentDescription
from daemons.protocol.replication import CopyFailed
from daemons.protocol.segment import Grant
from daemons.rpc import Call, Loop, Server
from daemons.service.daemon import software_version
from daemons.service.data_probe import DataProbes
from daemons.service.fd_store import FdStore
from daemons.service.identity import data_keys, data_secret, master_endpoint, open_identity
from daemons.service.master_link import MasterLink
from daemons.service.metrics import MetricsServer, count_refusals
from daemons.service.paths import runtime_dir
from daemons.store.copy_workers import CopyWorkers
from daemons.store.promotion import Promotion
from daemons.transfer import TransferEngine, contiguous, host_id, prefault_in_background
from daemons.transfer.topology import host_devices

log = logging.getLogger(__name__)

_DRAIN_POLL_S = 0.02
_FRAGMENTED_FRACTION = 0.9
"""Below what masters take for full."""
_METRICS_S = 1.0
_MAX_STAGED: Final = 8
"""This part of the segment is kept for staged blocks at most."""


class CachenodeApp:
    """Listens when built; `run` serves until drained or its loop is stopped."""

    def __init__(self, config: CachenodeConfig) -> None:
        self._node = NodeId(config.node.id)
        identity = open_identity(config.security.key_file, node=self._node, role="cachenode")
        self.loop = Loop(identity=identity)
        self._epoch = new_epoch()
        self._metrics = CachenodeMetrics()
        self._drain_s = config.copy.drain_s
        self._domain = config.node.domain
        self._orphan_after_s = config.report.orphan_after_s
        # All that may be taken comes before the segment: a start that fails leaves no memory behind.
        self._server = Server(self.loop, config.node.listen, self._hello, self._handle)
        self.endpoint = self._server.endpoint
        count_refusals(self._metrics.registry, "mc_cachenode", self._server)
        self._metrics_server = MetricsServer(config.node.metrics, self._metrics.registry)
        topology = topology_file(config.transfer)
        secret = data_secret(identity, config.transfer.secret_file)
        self._secret_mark = mark_of(secret)
        self._engine = TransferEngine(
            epoch=self._epoch,
            bind_host=config.transfer.host,
            more_hosts=config.transfer.more_hosts,
            tcp_port=config.transfer.port,
            unix_dir=runtime_dir(config.transfer.unix_dir),
            transports=config.transfer.transports,
            secret=secret,
            keys=data_keys(identity),
            topology=topology,
        )
        self._outside = self._engine
        if identity is not None:
            # With nothing that opens others' memory: a client chooses what is pulled.
            self._outside = TransferEngine(transports=("shm", "tcp"))
        self._devices = host_devices(
            wants_rdma="rdma" in config.transfer.transports, override=topology
        )
        opened: list[OpenedTier] = []
        fd_store = FdStore()
        try:
            opened = open_lower(config, self._on_dropped, self._on_found)
            self._storage = open_storage(config.segment, self._node, self._on_lost, fd_store)
        except BaseException:
            self._close_engines()  # or its socket's file stays
            for tier in opened:
                tier.store.close()
            raise
        self._segment, self._replicas = self._storage.segment, self._storage.replicas
        for name in fd_store.names():  # of a segment that the config no longer has
            fd_store.forget(name)
        self._is_closed = threading.Event()
        if not config.segment.prefault:
            # Puts that come before it is through pay for their own page faults.
            prefault_in_background(self._segment.array, self._is_closed)
        self._region = self._engine.register(self._segment.memory)
        self._workers = CopyWorkers(config.copy.workers, config.copy.max_queued_blocks)
        self._lower = {tier.tier: self._lower_blocks(tier) for tier in opened}
        tiers: list[ReportedTier] = [self._replicas, *self._lower.values()]
        for above, below in pairwise(self._lower.values()):
            below.take_from(above.store)
        self._reporter = Reporter(
            self.loop,
            tiers,
            (self._node, self._epoch),
            config.report.interval_s,
            lambda reply: self._handlers.obey(reply),
        )
        self._staging = Staging(
            StagingParts(
                loop=self.loop,
                replicas=self._replicas,
                lower=[tier.store for tier in self._lower.values()],
                rates=[tier.rate for tier in self._lower.values()],
                promotion=Promotion(config.ssd.promote_uses),
                limit_bytes=min(
                    size_bytes(config.ssd.stage, "ssd.stage"),
                    self._segment.slots.capacity_bytes // _MAX_STAGED,
                ),
                keep=self._keep,
                locate=self._locate,
                grant=self._grant,
                on_promoted=self._on_promoted,
                make_room=lambda length, layers: self._handlers.puts.make_room(length, layers),
            )
        )
        self._peers = ChannelPool(self.loop)
        self._reporter.pins = self._replicas.remembered.pins
        self._handlers = CachenodeHandlers(
            Parts(
                loop=self.loop,
                engine=self._engine,
                outside=self._outside,
                replicas=self._replicas,
                workers=self._workers,
                reporter=self._reporter,
                metrics=self._metrics,
                probes=DataProbes(self.loop, self._engine, config.transfer.transports),
                pull_timeout_s=config.transfer.timeout_s,
                room_wait_s=config.copy.room_wait_s,
                may_evict=self._may_evict,
                staging=self._staging,
                sources=SourceStaging(self.loop, self._peers),
                lower=list(self._lower.values()),
                locate=self._locate,
                copy_failed=self._on_copy_failed,
                copy_was_bad=self._on_copy_bad,
            )
        )
        self._link = MasterLink(
            self.loop,
            master_endpoint(config.master.endpoint, config.security),
            self._describe,
            on_joined=self._on_joined,
            on_notice=self._handlers.on_notice,
            on_keys=self._engine.admit,
        )
        self._reporter.attach(self._link)
        self._metrics.restored_blocks.set(self._replicas.num_sealed)
        for tier in opened:
            tier.store.start()
        self.loop.every(_METRICS_S, self._measure)
        self._measure()

    def run(self) -> None:
        self.loop.run()

    def drain(self) -> None:
        """New puts are refused; those begun are finished and reported, then the node leaves.

        Of a pull that is abandoned nothing was sealed.
        """
        self._handlers.drain()
        self._wait_for_puts(self.loop.clock() + self._drain_s)

    def status(self) -> str:
        slots = self._segment.slots
        return (
            f"node={self._node} control={self.endpoint} blocks={self._replicas.num_sealed} "
            f"used={format_size(slots.used_bytes)} of {format_size(slots.capacity_bytes)} {self._lower_status()}"
            f"master={'joined' if self._link.is_joined else 'none'}"
        )

    def _lower_status(self) -> str:
        usage = [(name, *tier.usage()) for name, tier in self._lower.items()]
        return "".join(
            f"{name}={format_size(used)} of {format_size(capacity)} "
            for name, used, capacity in usage
        )

    def close(self) -> None:
        self._is_closed.set()
        self._server.close()
        self._link.close()
        self._peers.close()
        self._workers.close()
        for tier in self._lower.values():
            tier.close()  # reads and fills the segment until then
        self._close_engines()
        self._storage.close()
        self._metrics_server.close()
        self.loop.close()

    def _close_engines(self) -> None:
        self._engine.close()
        if self._outside is not self._engine:
            self._outside.close()

    def _wait_for_puts(self, deadline_s: float) -> None:
        is_busy = self._handlers.puts.num_puts or (
            self._link.is_joined and not self._reporter.is_idle
        )
        if is_busy and self.loop.clock() < deadline_s:
            self.loop.call_later(_DRAIN_POLL_S, self._wait_for_puts, deadline_s)
            return
        self._link.leave(self.loop.stop)

    def _may_evict(self) -> bool:
        """Without a master for too long; or full only in this size class, which no master can see."""
        used_bytes, capacity_bytes = self._replicas.usage()
        return self._is_orphan() or used_bytes < _FRAGMENTED_FRACTION * capacity_bytes

    def _is_orphan(self) -> bool:
        alone_s = self.loop.clock() - self._link.last_contact_s
        return not self._link.is_joined and alone_s >= self._orphan_after_s

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
        segment = SegmentDescription(
            region=self._region,
            path=str(self._storage.place.path or ""),
            capacity_bytes=self._segment.slots.capacity_bytes,
        )
        return NodeDescription(
            node=self._node,
            role="cachenode",
            host=os.uname().nodename,
            host_id=host_id(),
            epoch=self._epoch,
            control=self._server.told,
            pid=os.getpid(),
            software=software_version(),
            data=self._engine.address,
            segments=[segment],
            metrics=self._metrics_server.address,
            devices=self._devices,
            ticks_ms=self._engine.ticks_ms(),
            secret_mark=self._secret_mark,
            domain=self._domain,
        )

    def _measure(self) -> None:
        self._reporter.refresh()
        metrics, slots = self._metrics, self._segment.slots
        metrics.used_bytes.set(slots.used_bytes)
        metrics.capacity_bytes.set(slots.capacity_bytes)
        metrics.blocks.set(self._replicas.num_sealed)
        metrics.index_written.set(self._storage.is_index_written)
        metrics.queued_blocks.set(self._workers.num_queued)
        metrics.bad_data_requests.set(self._engine.counters.bad_requests)
        metrics.sent_bytes.set(self._engine.counters.sent_bytes)
        metrics.staged_bytes.set(self._staging.used_bytes)
        for name, tier in self._lower.items():
            metrics.tiers[name].set(tier.store)

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
            region=self._region,
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
        return self._engine.grant(self._region, [whole], "read", ttl_s).grant

    def _keep(self, block_hash: BlockHash) -> None:
        for tier in self._lower.values():
            tier.write_down.keep(block_hash)

    def _on_promoted(self, block_hash: BlockHash) -> None:
        self._metrics.promoted.inc()
        self._reporter.sealed(block_hash)

    def _on_copy_failed(self, hashes: list[BlockHash], why: str) -> None:
        if self._link.is_joined:
            self._link.channel.post(
                CopyFailed(node=self._node, epoch=self._epoch, hashes=hashes, why=why)
            )

    def _on_copy_bad(self, at: BlockLocation, why: str) -> None:
        if self._link.is_joined:
            self._link.channel.post(BadReplica(hash=at.hash, node=at.node, why=why))

    def _on_lost(self, what: str, count: int) -> None:
        self._metrics.lost.labels(what).inc(count)
