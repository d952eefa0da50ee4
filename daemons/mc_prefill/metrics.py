"""What mc-prefill counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class PrefillMetrics:
    """One registry per process, so that tests may run several apps in one."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "mc_prefill_requests", "Prompts by outcome", ["outcome"], registry=self.registry
        )
        self.tokens = Counter(
            "mc_prefill_tokens", "Prompt tokens by origin", ["origin"], registry=self.registry
        )
        self.queued = Gauge("mc_prefill_queued", "Prompts not begun", registry=self.registry)
        self.free_tokens = Gauge(
            "mc_prefill_free_tokens", "Free KV of the arena", registry=self.registry
        )
        self.held = Gauge("mc_prefill_held_slots", "KV slots in use", registry=self.registry)
        self.retained_tokens = Gauge(
            "mc_prefill_retained_tokens",
            "KV of prompts that are done, given up on demand; part of the free KV",
            registry=self.registry,
        )
        self.device_blocks = Gauge(
            "mc_prefill_device_blocks", "Blocks in the arena to start from", registry=self.registry
        )
        self.device_tokens = Counter(
            "mc_prefill_device_tokens",
            "Reused prompt tokens whose KV was in the arena",
            registry=self.registry,
        )
        self.loaded_bytes = Counter(
            "mc_prefill_loaded_bytes", "KV read from the pool", registry=self.registry
        )
        self.bad_blocks = Counter(
            "mc_prefill_bad_blocks", "Reused blocks that failed", registry=self.registry
        )
        self.published = Counter(
            "mc_prefill_published_blocks", "New blocks in the pool", registry=self.registry
        )
        self.puts_given_up = Counter(
            "mc_prefill_puts_given_up",
            "Slots that hung puts held and others needed",
            registry=self.registry,
        )
        self.sibling_blocks = Counter(
            "mc_prefill_sibling_blocks",
            "Blocks reused that another prompt made here while theirs waited",
            registry=self.registry,
        )
        self.compute = Histogram(
            "mc_prefill_compute_seconds",
            "Model time of a prompt",
            buckets=(0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
            registry=self.registry,
        )
