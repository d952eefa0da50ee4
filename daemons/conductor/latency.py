"""Predictions in seconds from what an instance has measured of itself, and defaults until it has.

prefill(n tokens, of which c are reused) = fixed + token * u + token_context * u * (c + u/2), with u = n - c: linear
work plus attention to what stands before, the middle of the new tokens seeing c + u/2 (design section 7).
decode step of B sequences with k tokens of context in all = step + sequence * (B - 1) + context_token * k.
"""

from dataclasses import dataclass, replace

import numpy as np

from daemons.conductor.columns import Floats, Ints
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
    is_guess: bool = True
    """Nobody has measured or stated how long a prefill takes."""

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


class CostColumns:
    """CostModel by row; the same formulas in the same order, so that both give the same numbers to the last bit."""

    def __init__(self, terms: Floats) -> None:
        """`terms`: a row for each term of CostModel, in its order."""
        self.terms = terms
        (
            self.fixed_s,
            self.token_s,
            self.token_context_s,
            self.step_s,
            self.load_token_s,
            self.remote_load_factor,
            self.sequence_s,
            self.context_token_s,
        ) = terms

    def prefill_s(self, num_tokens: int, num_cached: Ints) -> Floats:
        new = np.maximum(1, num_tokens - num_cached)
        middle = np.maximum(0, num_tokens - new) + new / 2
        prefill_s: Floats = self.fixed_s + self.token_s * new + self.token_context_s * new * middle
        return prefill_s

    def load_s(self, num_local: Ints, num_remote: Ints) -> Floats:
        load_s: Floats = self.load_token_s * (num_local + self.remote_load_factor * num_remote)
        return load_s

    def decode_step_s(self, num_others: Ints, context_tokens: Ints) -> Floats:
        step_s: Floats = (
            self.step_s + self.sequence_s * num_others + self.context_token_s * context_tokens
        )
        return step_s


def measured(load: InstanceLoad | None, seed: CostModel | None = None) -> CostModel:
    """Each term as measured; a term that never was, or makes no sense, keeps that of `seed`."""
    seed = seed or CostModel()
    if load is None:
        return seed
    load_token_s = load.load_token_s if _is_measured(load.load_token_s) else seed.load_token_s
    return replace(_with_decode(_with_prefill(seed, load), load), load_token_s=load_token_s)


def _with_prefill(seed: CostModel, load: InstanceLoad) -> CostModel:
    """A fit may have found a term to be nothing: that is a measurement too."""
    terms = (load.prefill_fixed_s, load.prefill_token_s, load.prefill_token_context_s)
    if not any(map(_is_measured, terms)):
        return seed
    fixed_s, token_s, token_context_s = (term if _is_measured(term) else 0.0 for term in terms)
    return replace(
        seed, fixed_s=fixed_s, token_s=token_s, token_context_s=token_context_s, is_guess=False
    )


def _with_decode(seed: CostModel, load: InstanceLoad) -> CostModel:
    """As long as it had one sequence at a time, it does not know what another one costs."""
    step_s = load.decode_fixed_s if _is_measured(load.decode_fixed_s) else load.decode_step_s
    if not _is_measured(step_s):
        return seed
    sequence_s, context_token_s = load.decode_sequence_s, load.decode_context_token_s
    return replace(
        seed,
        step_s=step_s,
        sequence_s=sequence_s if _is_measured(sequence_s) else step_s * BATCH_STEP_FRACTION,
        context_token_s=context_token_s if _is_measured(context_token_s) else 0.0,
    )


def _is_measured(seconds: float) -> bool:
    return 0 < seconds < MAX_TERM_S
