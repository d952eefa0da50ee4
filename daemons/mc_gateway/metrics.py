"""What a gateway counts, in a Prometheus registry of its own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from daemons.mc_gateway.api_reply import ChoiceResult

_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 30, 60)
_TBT_BUCKETS = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2)


class GatewayMetrics:
    """Coroutines' thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "mc_gateway_requests",
            "Requests by endpoint and HTTP status (of a stream that broke off: why); 499: the client left.",
            ("endpoint", "status"),
            registry=self.registry,
        )
        self.in_flight = self._gauge("requests_in_flight", "Requests being answered.")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished requests.")
        self.cached_tokens = self._counter("cached_tokens", "Those among them that were reused.")
        self.completion_tokens = self._counter("completion_tokens", "Generated tokens.")
        self.retries = self._counter("retries", "Attempts after the first.")
        self.tenant_requests = self._by_tenant(
            "requests", "Requests by tenant and status.", "status"
        )
        self.tenant_tokens = self._by_tenant(
            "tokens", "Tokens by tenant: prompt (cached ones included), cached, completion.", "kind"
        )
        self.tenant_cost = self._by_tenant("cost", "By the price table of the tenant file.")
        self.usage_lost = self._gauge("usage_lost", "Lines of usage that were given up.")
        self.usage_waiting = self._gauge(
            "usage_waiting", "Lines of usage that wait for room on the disk."
        )
        self.access_lost = self._gauge(
            "access_lost", "Lines of the access log that could not be written, or were too many."
        )
        self.ttft_s = Histogram(
            "mc_gateway_ttft_seconds",
            "Arrival of a request to its first token.",
            buckets=_TTFT_BUCKETS,
            registry=self.registry,
        )
        self.tbt_s = Histogram(
            "mc_gateway_tbt_seconds",
            "Time between tokens.",
            buckets=_TBT_BUCKETS,
            registry=self.registry,
        )

    def record(self, results: list[ChoiceResult]) -> None:
        for result in results:
            self.prompt_tokens.inc(result.num_prompt_tokens)
            self.cached_tokens.inc(result.mooncake.reused_tokens)
            self.completion_tokens.inc(result.num_tokens)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"mc_gateway_{name}", text, registry=self.registry)

    def _by_tenant(self, name: str, text: str, *labels: str) -> Counter:
        labelled = ("tenant", *labels)
        return Counter(f"mc_gateway_tenant_{name}", text, labelled, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"mc_gateway_{name}", text, registry=self.registry)
