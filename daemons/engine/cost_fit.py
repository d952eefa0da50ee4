"""Online fits by decayed least squares: of prefill time, and of the time of a decode step.

prefill = fixed + token * n + token_context * n * (mean context): attention makes a token dearer the longer its context,
hence the product term (facts: the paper's Figure 2 shape). step = fixed + sequence * (batch - 1) + context_token * (all
tokens of context): reading the weights, then what each sequence adds, then reading their KV.
"""

import numpy as np
from numpy.typing import NDArray

_DECAY = 0.98
_RIDGE = 1e-9
_PACE_DECAY = 0.6
"""Measured on two cores with 16 busy processes: the last two or three prompts say most of the next one."""
_PACE_FROM = 4
"""Samples; before that the fit itself follows each."""
_MOST_OFF = 4.0
"""Slower by more than this was something else."""
PREFILL_SCALE = np.array([1.0, 1e-3, 1e-6])
STEP_SCALE = np.array([1.0, 1e-1, 1e-4])
"""Keep the three columns of like size, so that the small ridge does not bias one of them."""

Floats = NDArray[np.float64]


class LeastSquares:
    """None of the coefficients is negative."""

    def __init__(self, scale: Floats, alone: int, decay: float = _DECAY) -> None:
        """`scale`: keeps the columns of like size. `alone`: the coefficient that is fitted while there are too few
        samples for all.
        """
        self._scale = scale
        self._alone = alone
        self._decay = decay
        self._normal = np.zeros((len(scale), len(scale)))
        self._moment = np.zeros(len(scale))
        self.num_samples = 0

    def add(self, columns: tuple[float, ...], elapsed_s: float) -> None:
        row = np.array(columns) * self._scale
        self._normal = self._normal * self._decay + np.outer(row, row)
        self._moment = self._moment * self._decay + row * elapsed_s
        self.num_samples += 1

    def coefficients(self) -> tuple[float, ...]:
        """Zeros until measured. One that would come out negative is dropped and the others are fitted again."""
        zeros = np.zeros(len(self._scale))
        if not self.num_samples:
            return tuple(zeros.tolist())
        every = list(range(len(self._scale)))
        active = every if self.num_samples >= len(every) else [self._alone]
        while active:
            block = self._normal[np.ix_(active, active)]
            ridge = np.eye(len(active)) * _RIDGE * max(1.0, float(np.trace(block)))
            solved = np.linalg.solve(block + ridge, self._moment[active])
            worst = int(np.argmin(solved))
            if solved[worst] >= 0:
                zeros[active] = solved * self._scale[active]
                break
            del active[worst]
        return tuple(zeros.tolist())


class CostFit:
    """Feed it measured prefills. Many say how time grows with length; the last few, how fast the machine is now, which
    on shared cores changes by a factor within a minute.
    """

    def __init__(self) -> None:
        self._fit = LeastSquares(PREFILL_SCALE, alone=1)
        self._pace = 1.0

    @property
    def num_samples(self) -> int:
        return self._fit.num_samples

    def observe(self, num_tokens: int, start: int, elapsed_s: float) -> None:
        """`num_tokens` computed from position `start` took `elapsed_s` of model time."""
        columns = (1.0, num_tokens, num_tokens * (start + num_tokens / 2))
        fitted_s = float(np.dot(columns, self._fit.coefficients()))
        if self.num_samples >= _PACE_FROM and fitted_s > 0 and elapsed_s > 0:
            ratio = min(_MOST_OFF, max(1 / _MOST_OFF, elapsed_s / fitted_s))
            self._pace = self._pace**_PACE_DECAY * ratio ** (1 - _PACE_DECAY)
        self._fit.add(columns, elapsed_s)

    def coefficients(self) -> tuple[float, float, float]:
        """(fixed_s, token_s, token_context_s) at the present pace, none negative; zeros until measured."""
        fixed_s, token_s, token_context_s = self._fit.coefficients()
        return fixed_s * self._pace, token_s * self._pace, token_context_s * self._pace


class StepFit:
    """Feed it measured decode steps."""

    def __init__(self) -> None:
        self._fit = LeastSquares(STEP_SCALE, alone=0)

    def observe(self, num_sequences: int, context_tokens: int, elapsed_s: float) -> None:
        """One step of so many sequences, which have so many tokens of context together."""
        self._fit.add((1.0, num_sequences - 1, context_tokens), elapsed_s)

    def coefficients(self) -> tuple[float, float, float]:
        """(fixed_s, sequence_s, context_token_s), none negative; zeros until measured."""
        fixed_s, sequence_s, context_token_s = self._fit.coefficients()
        return fixed_s, sequence_s, context_token_s
