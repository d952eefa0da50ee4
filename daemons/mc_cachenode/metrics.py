"""What a cache node counts, by Prometheus name."""

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from daemons.protocol.block import Tier
from daemons.protocol.segment import SegmentState
from daemons.store.lower import LowerTier

_PULL_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0)


LOWER_TIERS: Final[tuple[Tier, ...]] = ("ssd", "object")


class TierMetrics:
    """Of one tier below DRAM; all stay 0 where there is none."""

    def __init__(self, registry: CollectorRegistry, tier: Tier) -> None:
        name = f"mc_cachenode_{tier}"
        self._used_bytes = Gauge(f"{name}_used_bytes", "Bytes taken", registry=registry)
        self._capacity_bytes = Gauge(
            f"{name}_capacity_bytes", "Bytes that may be taken", registry=registry
        )
        self._blocks = Gauge(f"{name}_blocks", "Blocks there", registry=registry)
        self._resting = Gauge(
            f"{name}_resting", "1 while it is left alone after a failure, else 0", registry=registry
        )
        self._events = Gauge(
            f"{name}_events",
            "Since the start, by kind: blocks and bytes put, read, copied, deleted, evicted, bad; errors",
            ["kind"],
            registry=registry,
        )

    def set(self, store: LowerTier) -> None:
        self._used_bytes.set(store.used_bytes)
        self._capacity_bytes.set(store.capacity_bytes)
        self._blocks.set(store.num_blocks)
        self._resting.set(store.why_resting is not None)
        for kind, count in store.counts().items():
            self._events.labels(kind).set(count)


class CachenodeMetrics:
    """One registry per process, so that tests can run several nodes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.put_blocks = Counter(
            "mc_cachenode_put_blocks",
            "Blocks of puts by outcome",
            ["status"],
            registry=self.registry,
        )
        self.copied_blocks = Counter(
            "mc_cachenode_copied_blocks",
            "Blocks copied from peers by outcome",
            ["status"],
            registry=self.registry,
        )
        self.pulled_bytes = Counter(
            "mc_cachenode_pulled_bytes", "Payload bytes sealed", registry=self.registry
        )
        self.pull_seconds = Histogram(
            "mc_cachenode_pull_seconds",
            "Time to read, hash and seal one block",
            buckets=_PULL_BUCKETS_S,
            registry=self.registry,
        )
        self.freed_blocks = Counter(
            "mc_cachenode_freed_blocks", "Blocks freed by reason", ["why"], registry=self.registry
        )
        self.lost = Counter(
            "mc_cachenode_lost",
            "What this start could not take over: index (all of it), tail, record, block",
            ["what"],
            registry=self.registry,
        )
        self.restored_blocks = self._gauge(
            "mc_cachenode_restored_blocks", "Blocks this start took over from the process before"
        )
        self.index_written = self._gauge(
            "mc_cachenode_index_written", "1 while the blocks of this node will outlive it, else 0"
        )
        self.used_bytes = self._gauge("mc_cachenode_used_bytes", "Bytes of all segments in use")
        self.capacity_bytes = self._gauge(
            "mc_cachenode_capacity_bytes", "Bytes of all segments that take blocks"
        )
        self.segment_bytes = Gauge(
            "mc_cachenode_segment_bytes",
            "Of each segment, by its number and status: capacity, used, allocated so far",
            ["segment", "status", "what"],
            registry=self.registry,
        )
        self.blocks = self._gauge("mc_cachenode_blocks", "Sealed blocks")
        self.queued_blocks = self._gauge("mc_cachenode_queued_blocks", "Blocks waiting or copying")
        self.bad_data_requests = self._gauge(
            "mc_cachenode_bad_data_requests", "Connections closed for bytes that are no request"
        )
        self.sent_bytes = self._gauge(
            "mc_cachenode_sent_bytes", "Bytes streamed to readers that cannot map the segment"
        )

        self.staged_bytes = self._gauge(
            "mc_cachenode_staged_bytes", "DRAM held for blocks that readers want from lower tiers"
        )
        self.promoted = Counter(
            "mc_cachenode_promoted_blocks",
            "Blocks that stayed in DRAM after they were read from a lower tier",
            registry=self.registry,
        )
        self.not_written = Counter(
            "mc_cachenode_not_written_blocks",
            "Blocks that a lower tier could not take when they should have been written",
            registry=self.registry,
        )
        self.tiers = {tier: TierMetrics(self.registry, tier) for tier in LOWER_TIERS}

    def set_segments(self, segments: Sequence[SegmentState]) -> None:
        """All there are."""
        self.segment_bytes.clear()
        for each in segments:
            sizes = ("capacity", each.capacity_bytes), ("used", each.used_bytes)
            for what, num_bytes in (*sizes, ("allocated", each.done_bytes)):
                self.segment_bytes.labels(str(each.number), each.status, what).set(num_bytes)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)
