"""How fast this instance computes and loads, as its latest prompts took: what the Conductor predicts by."""

from collections import deque

from daemons.client.prefix_load import PrefixLoad
from daemons.engine.cost_fit import CostFit

_MIN_SAMPLE_TOKENS = 512
"""Shorter loads measure the round trips, not the bytes."""
_LOAD_SAMPLES = 8
"""The fastest of so many: a first load also maps the peer's memory, and a rate that looks bad is not tried again."""


class Pace:
    """Learns from what is done; says nothing of what is under way."""

    def __init__(self) -> None:
        self._cost = CostFit()
        self._load_rates: deque[float] = deque(maxlen=_LOAD_SAMPLES)
        """Seconds a token of the latest loads."""

    @property
    def load_token_s(self) -> float:
        """0 until a load was long enough."""
        return min(self._load_rates, default=0.0)

    def coefficients(self) -> tuple[float, float, float]:
        """Seconds: fixed, for each new token, for each new token and token of context before it."""
        return self._cost.coefficients()

    def computed(self, num_computed: int, num_reused: int, compute_s: float) -> None:
        self._cost.observe(num_computed, num_reused, compute_s)

    def loaded(self, load: PrefixLoad) -> None:
        tokens = load.num_blocks * load.block_tokens
        if tokens >= _MIN_SAMPLE_TOKENS:
            self._load_rates.append(load.elapsed_s / tokens)
