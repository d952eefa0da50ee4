"""What an instance's predictions are off by, learned from the requests that it has served: a part that is always the
same (messages, the hand-over) and a factor (a machine that is slower today). Pure.
"""

from dataclasses import dataclass, replace
from typing import Final

from daemons.conductor.latency import CostModel

_DECAY: Final = 0.9
_MOST: Final = 5.0
"""A factor beyond it, or below its inverse, says that something else was measured."""
_MIN_WEIGHT: Final = 2.5
"""Some three requests."""
_LEAST_SPREAD: Final = 0.05
"""Of the predictions' square: where all are alike, one line through them is as good as another."""


@dataclass(slots=True)
class Correction:
    """actual = `fixed_s` + `factor` * predicted, by least squares over requests that fade."""

    fixed_s: float = 0.0
    factor: float = 1.0
    _weight: float = 0.0
    _predicted: float = 0.0
    _actual: float = 0.0
    _squares: float = 0.0
    _products: float = 0.0

    def observe(self, predicted_s: float, actual_s: float) -> None:
        """`predicted_s` is without correction. Relative errors count: a request is weighed by 1 / predicted."""
        if not (predicted_s > 1e-6 and 0 < actual_s < _MOST * _MOST * predicted_s):
            return
        share = 1 / (predicted_s * predicted_s)
        self._weight = _DECAY * self._weight + share
        self._predicted = _DECAY * self._predicted + share * predicted_s
        self._actual = _DECAY * self._actual + share * actual_s
        self._squares = _DECAY * self._squares + 1.0
        self._products = _DECAY * self._products + share * predicted_s * actual_s
        if self._squares >= _MIN_WEIGHT:
            self._solve()

    def apply(self, cost: CostModel) -> CostModel:
        return replace(
            cost,
            fixed_s=self.fixed_s + self.factor * cost.fixed_s,
            token_s=self.factor * cost.token_s,
            token_context_s=self.factor * cost.token_context_s,
        )

    def _solve(self) -> None:
        determinant = self._weight * self._squares - self._predicted * self._predicted
        self.fixed_s, self.factor = 0.0, self._products / self._squares
        if determinant > _LEAST_SPREAD * self._weight * self._squares:
            factor = (self._weight * self._products - self._predicted * self._actual) / determinant
            fixed_s = (self._actual - factor * self._predicted) / self._weight
            if fixed_s >= 0 and factor > 0:
                self.fixed_s, self.factor = fixed_s, factor
        self.factor = min(_MOST, max(1 / _MOST, self.factor))
