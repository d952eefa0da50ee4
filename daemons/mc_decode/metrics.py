"""What mc-decode counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class DecodeMetrics:
    """One registry per process, so that tests may run several apps in one."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "mc_decode_requests", "Requests by outcome", ["outcome"], registry=self.registry
        )
        self.tokens = Counter("mc_decode_tokens", "Tokens generated here", registry=self.registry)
        self.draft_tokens = Counter(
            "mc_decode_draft_tokens",
            "Tokens guessed and tried, and those of them that were right",
            ["what"],
            registry=self.registry,
        )
        self.pulled_bytes = Counter(
            "mc_decode_pulled_bytes", "KV read from prefill nodes", registry=self.registry
        )
        self.loaded_bytes = Counter(
            "mc_decode_loaded_bytes", "KV read from the pool", registry=self.registry
        )
        self.published = Counter(
            "mc_decode_published_blocks", "Answer blocks in the pool", registry=self.registry
        )
        self.puts_given_up = Counter(
            "mc_decode_puts_given_up",
            "Slots that hung puts held and others needed",
            registry=self.registry,
        )
        self.waiting = Gauge(
            "mc_decode_waiting", "Requests without KV room", registry=self.registry
        )
        self.running = Gauge("mc_decode_running", "Requests with a KV slot", registry=self.registry)
        self.free_tokens = Gauge(
            "mc_decode_free_tokens", "Free KV of the arena", registry=self.registry
        )
        self.first_token = Histogram(
            "mc_decode_first_token_seconds",
            "Arrival until the first token",
            buckets=(0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
            registry=self.registry,
        )
        self.step = Histogram(
            "mc_decode_step_seconds",
            "One step of the batch",
            buckets=(0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.5, 1),
            registry=self.registry,
        )
