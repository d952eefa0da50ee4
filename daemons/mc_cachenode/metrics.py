"""What a cache node counts, by Prometheus name."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from daemons.store.ssd import SsdTier

_PULL_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0)


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
        self.used_bytes = self._gauge("mc_cachenode_used_bytes", "Bytes of the segment in use")
        self.capacity_bytes = self._gauge("mc_cachenode_capacity_bytes", "Bytes of the segment")
        self.blocks = self._gauge("mc_cachenode_blocks", "Sealed blocks")
        self.queued_blocks = self._gauge("mc_cachenode_queued_blocks", "Blocks waiting or copying")
        self.bad_data_requests = self._gauge(
            "mc_cachenode_bad_data_requests", "Connections closed for bytes that are no request"
        )
        self.sent_bytes = self._gauge(
            "mc_cachenode_sent_bytes", "Bytes streamed to readers that cannot map the segment"
        )

        self.staged_bytes = self._gauge(
            "mc_cachenode_staged_bytes", "DRAM held for blocks that readers want from the SSD"
        )
        self.promoted = Counter(
            "mc_cachenode_promoted_blocks",
            "Blocks that stayed in DRAM after they were read from the SSD",
            registry=self.registry,
        )
        self.not_written = Counter(
            "mc_cachenode_not_written_blocks",
            "Blocks that the SSD could not take when they should have been written",
            registry=self.registry,
        )
        self.ssd_used_bytes = self._gauge("mc_cachenode_ssd_used_bytes", "Bytes of SSD files")
        self.ssd_capacity_bytes = self._gauge(
            "mc_cachenode_ssd_capacity_bytes", "Bytes that SSD files may take"
        )
        self.ssd_blocks = self._gauge("mc_cachenode_ssd_blocks", "Blocks on the SSD")
        self.ssd_resting = self._gauge(
            "mc_cachenode_ssd_resting", "1 while the SSD is left alone after a failure, else 0"
        )
        self.ssd_events = Gauge(
            "mc_cachenode_ssd_events",
            "Since the start, by kind: blocks and bytes put, read, copied, deleted, evicted, bad; errors",
            ["kind"],
            registry=self.registry,
        )

    def set_ssd(self, ssd: SsdTier) -> None:
        self.ssd_used_bytes.set(ssd.used_bytes)
        self.ssd_capacity_bytes.set(ssd.settings.capacity_bytes)
        self.ssd_blocks.set(ssd.num_blocks)
        self.ssd_resting.set(ssd.why_resting is not None)
        for kind, count in ssd.counters.as_dict().items():
            self.ssd_events.labels(kind).set(count)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)
