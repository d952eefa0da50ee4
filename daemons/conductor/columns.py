"""What array operations over instances work on: types of columns, and CostModel by row."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = NDArray[np.intp]


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
