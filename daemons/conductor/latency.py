"""Predictions in seconds from what an instance has measured of itself, and defaults until it has.

prefill(n tokens, of which c are reused) = fixed + token * u + token_context * u * (c + u/2), with u = n - c: linear
work plus attention to what stands before, the middle of the new tokens seeing c + u/2 (design section 7).
decode step of B sequences with k tokens of context in all = step + sequence * (B - 1) + context_token * k.
"""

from dataclasses import dataclass, replace

from daemons.protocol.node import InstanceLoad

REMOTE_LOAD_FACTOR = 4.0
"""A block of another host crosses the network; until measured, so many times the cost of one mapped here."""
MAX_TERM_S = 3600.0
BATCH_STEP_FRACTION = 0.06
"""How much one more sequence lengthens a decode step until measured; steps are bound by reading the weights."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """The defaults are those of a small model on a CPU core: only their proportions matter, and only until measured."""

    fixed_s: float = 0.005
    token_s: float = 4e-4
    token_context_s: float = 2e-8
    step_s: float = 0.03
    load_token_s: float = 4e-6
    remote_load_factor: float = REMOTE_LOAD_FACTOR
    sequence_s: float = 0.03 * BATCH_STEP_FRACTION
    context_token_s: float = 0.0

    def prefill_s(self, num_tokens: int, num_cached: int) -> float:
        """At least one token is computed: the last one's logits are needed."""
        new = max(1, num_tokens - num_cached)
        middle = max(0, num_tokens - new) + new / 2
        return self.fixed_s + self.token_s * new + self.token_context_s * new * middle

    def load_s(self, num_local: int, num_remote: int) -> float:
        """Reading reused KV of so many tokens from this host and from others."""
        return self.load_token_s * (num_local + self.remote_load_factor * num_remote)

    def decode_step_s(self, num_others: int, context_tokens: int) -> float:
        """One step of a sequence beside so many others; `context_tokens` are those of all of them."""
        return self.step_s + self.sequence_s * num_others + self.context_token_s * context_tokens


def measured(load: InstanceLoad | None) -> CostModel:
    """Each term as measured; a term that never was, or makes no sense, keeps its default."""
    default = CostModel()
    if load is None:
        return default
    prefill = default
    terms = (load.prefill_fixed_s, load.prefill_token_s, load.prefill_token_context_s)
    if any(_is_measured(term) for term in terms):
        # A fit may have found a term to be nothing: that is a measurement too.
        fixed_s, token_s, token_context_s = (t if _is_measured(t) else 0.0 for t in terms)
        prefill = CostModel(fixed_s=fixed_s, token_s=token_s, token_context_s=token_context_s)
    step_s = load.decode_step_s if _is_measured(load.decode_step_s) else default.step_s
    return replace(
        prefill,
        step_s=step_s,
        sequence_s=step_s * BATCH_STEP_FRACTION,
        load_token_s=load.load_token_s if _is_measured(load.load_token_s) else default.load_token_s,
    )


def _is_measured(seconds: float) -> bool:
    return 0 < seconds < MAX_TERM_S
