"""Online fit of prefill time: fixed + token * n + token_context * n * (mean context), by decayed least squares.

Attention makes a token dearer the longer its context, hence the product term (facts: the paper's Figure 2 shape).
"""

import numpy as np

_DECAY = 0.98
_RIDGE = 1e-9
_SCALE = np.array([1.0, 1e-3, 1e-6])
"""Keeps the three columns of like size, so that the small ridge does not bias one of them."""


class CostFit:
    """Feed it measured prefills; it needs three different ones before it says anything."""

    def __init__(self) -> None:
        self._normal = np.zeros((3, 3))
        self._moment = np.zeros(3)
        self.num_samples = 0

    def observe(self, num_tokens: int, start: int, elapsed_s: float) -> None:
        """`num_tokens` computed from position `start` took `elapsed_s` of model time."""
        row = np.array([1.0, num_tokens, num_tokens * (start + num_tokens / 2)]) * _SCALE
        self._normal = self._normal * _DECAY + np.outer(row, row)
        self._moment = self._moment * _DECAY + row * elapsed_s
        self.num_samples += 1

    def coefficients(self) -> tuple[float, float, float]:
        """(fixed_s, token_s, token_context_s), none negative; zeros until measured.

        A coefficient that would come out negative is dropped and the others are fitted again.
        """
        if not self.num_samples:
            return (0.0, 0.0, 0.0)
        active = [0, 1, 2] if self.num_samples >= 3 else [1]
        while active:
            block = self._normal[np.ix_(active, active)]
            ridge = np.eye(len(active)) * _RIDGE * max(1.0, float(np.trace(block)))
            solved = np.linalg.solve(block + ridge, self._moment[active])
            worst = int(np.argmin(solved))
            if solved[worst] >= 0:
                full = np.zeros(3)
                full[active] = solved * _SCALE[active]
                return (float(full[0]), float(full[1]), float(full[2]))
            del active[worst]
        return (0.0, 0.0, 0.0)
