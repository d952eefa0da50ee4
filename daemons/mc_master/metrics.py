"""mc-master's /metrics. Counters are raised where things happen; gauges are set once per beat interval."""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from daemons.conductor.request_log import LoggedRequest
from daemons.store.directory.tenant_usage import TenantHeld

_SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_RATIOS: Final = (0.02, 0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 2.0)


class MasterMetrics:
    """A registry of its own, so that several masters can live in one process (tests)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.nodes = Gauge(
            "mc_master_nodes", "Nodes by role and state", ["role", "state"], registry=self.registry
        )
        self.incarnation = self._gauge("mc_master_incarnation", "Life of this master")
        self.blocks = self._gauge("mc_master_blocks", "Blocks in the directory")
        self.replicas = self._gauge("mc_master_replicas", "Replicas in the directory")
        self.used_bytes = self._gauge(
            "mc_master_pool_used_bytes", "Bytes used of the pool, as nodes report"
        )
        self.capacity_bytes = self._gauge("mc_master_pool_capacity_bytes", "Bytes lent to the pool")
        self.running_requests = self._gauge(
            "mc_master_requests_running", "Requests planned and not yet done"
        )
        self.lookups = self._counter("mc_master_lookups", "Match, Locate and Schedule lookups")
        self.lookup_blocks = self._counter("mc_master_lookup_blocks", "Blocks asked for in lookups")
        self.hit_blocks = self._counter("mc_master_hit_blocks", "Blocks found in lookups")
        self.stored_blocks = self._counter("mc_master_blocks_stored", "Replicas sealed")
        self.evicted_blocks = self._counter(
            "mc_master_blocks_evicted", "Replicas freed by eviction"
        )
        self.cleared_blocks = self._counter("mc_master_blocks_cleared", "Replicas freed by clear")
        self.bad_blocks = self._counter(
            "mc_master_blocks_bad",
            "Replicas freed because their bytes no longer matched their seal",
        )
        self.refused_blocks = self._counter(
            "mc_master_blocks_refused", "Blocks that nodes had no room for"
        )
        self.tenant_pool_bytes = Gauge(
            "mc_master_tenant_pool_bytes",
            "In DRAM, of tenants with a pool quota: quota, used, leased, pinned",
            ["tenant", "what"],
            registry=self.registry,
        )
        self.copies = Counter(
            "mc_master_copies",
            "Copies between nodes: ordered, failed, lost (neither reported nor failed)",
            ["outcome"],
            registry=self.registry,
        )
        self.short_blocks = self._gauge(
            "mc_master_blocks_short",
            "Blocks with fewer replicas than they should have; up to 8192 are counted",
        )
        self.hot_blocks = self._gauge(
            "mc_master_blocks_hot", "Blocks that have more replicas for their heat"
        )
        self.heated_blocks = self._counter(
            "mc_master_blocks_heated", "Times that a block got another replica for its heat"
        )
        self.cooled_blocks = self._counter(
            "mc_master_blocks_cooled", "Times that a block lost such replicas again"
        )
        self.spread_blocks = self._counter(
            "mc_master_blocks_spread", "Cold blocks that left a full node for one with room"
        )
        self.staged_blocks = Counter(
            "mc_master_blocks_staged_ahead",
            "Blocks that nodes were told to bring up while the request that reads them was queued, by tier",
            ["tier"],
            registry=self.registry,
        )
        self.plans = Counter(
            "mc_master_plans", "Plans by policy", ["policy"], registry=self.registry
        )
        self.rejections = Counter(
            "mc_master_rejections", "Requests that got no plan", ["why"], registry=self.registry
        )
        self.overload = Counter(
            "mc_master_overload_rejections",
            "Requests refused for load: by the queue or the objective that they would have missed, or shed before it",
            ["limit"],
            registry=self.registry,
        )
        self.malformed = self._gauge(
            "mc_master_malformed_messages", "Messages that were no request"
        )
        self.stale = self._gauge(
            "mc_master_stale_messages", "Requests older than their deadline after a stall"
        )
        self.handler_errors = self._gauge("mc_master_handler_errors", "Bugs caught in handlers")
        self.plan_seconds = Histogram(
            "mc_master_plan_seconds",
            "Time to make a plan",
            buckets=(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03),
            registry=self.registry,
        )
        self._prediction_error_seconds = Histogram(
            "mc_master_ttft_prediction_error_seconds",
            "Absolute difference of predicted and actual time to first token",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._prediction_error_ratio = Histogram(
            "mc_master_ttft_prediction_error_ratio",
            "Absolute difference of predicted and actual time to first token, divided by the actual one",
            buckets=_RATIOS,
            registry=self.registry,
        )
        self._tbt_error_ratio = Histogram(
            "mc_master_tbt_prediction_error_ratio",
            "Absolute difference of predicted and actual time between tokens, divided by the actual one",
            buckets=_RATIOS,
            registry=self.registry,
        )

    def predicted(self, request: LoggedRequest) -> None:
        """It has ended: how far off its predictions were; a guess was none."""
        actual_s, predicted_s = request.actual_ttft_s, request.predicted_ttft_s
        if actual_s is not None and predicted_s is not None and not request.is_guess:
            self._prediction_error_seconds.observe(abs(actual_s - predicted_s))
            self._prediction_error_ratio.observe(abs(actual_s - predicted_s) / actual_s)
        actual_s, predicted_s = request.actual_tbt_s, request.predicted_tbt_s
        if actual_s is not None and predicted_s is not None:
            self._tbt_error_ratio.observe(abs(actual_s - predicted_s) / actual_s)

    def show_quotas(self, quotas: Mapping[str, int], held: Mapping[str, TenantHeld]) -> None:
        """Of those that have one."""
        self.tenant_pool_bytes.clear()
        for tenant, limit in quotas.items():
            of_tenant = held.get(tenant, TenantHeld())
            values = {
                "quota": limit,
                "used": of_tenant.used_bytes,
                "leased": of_tenant.leased_bytes,
                "pinned": of_tenant.pinned_bytes,
            }
            for what, num_bytes in values.items():
                self.tenant_pool_bytes.labels(tenant, what).set(num_bytes)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)
