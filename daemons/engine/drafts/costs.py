"""What drafts add to a decode step, as a share of the step: a guess at first, then as this machine was measured.

Steps with and without drafts alternate all the time, so one fit over many of them tells what drafts add even where
other work makes each of them fast or slow.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from daemons.engine.cost_fit import LeastSquares

_SCALE: Final = np.array([1.0, 1e-1, 1e-4, 1e-1, 1e-1])
_DECAY: Final = 0.998
"""The shares are the machine's, and stay; its pace is in all terms alike."""
_FIT_EVERY: Final = 16
"""Steps between two looks at the fit: a look costs as much as the plan of a step."""
_LEAST_SAMPLES: Final = 40
_TRUST: Final = 60
"""Steps with drafts that weigh as much as the first guess."""
_MOST_OFF: Final = 2.0
"""A step slower by more than this than fitted did something else too."""


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """In steps without drafts."""

    row: float = 0.02
    """Of each token that is guessed."""
    length: float = 0.05
    """Of each further draft length in a step, none being one: attention takes sequences of one length together."""

    def of(self, drafts: list[int]) -> float:
        """Of a step whose sequences have so many tokens guessed."""
        return self.row * sum(drafts) + self.length * (len(set(drafts)) - 1)


_GUESS: Final = DraftCosts()
_LEAST: Final = DraftCosts(row=0.005, length=0.0)
_MOST: Final = DraftCosts(row=1.0, length=1.0)
"""Bounds of the measured."""


class MeasuredCosts:
    """Feed it every step; `costs` follow."""

    def __init__(self) -> None:
        self.costs = _GUESS
        self._fit = LeastSquares(_SCALE, alone=0, decay=_DECAY)
        self._terms: tuple[float, ...] = ()
        self._num_drafted = 0.0

    def observe(self, drafts: list[int], context_tokens: int, elapsed_s: float) -> None:
        """One step of sequences that had so many tokens guessed, and so much context together."""
        columns = (1.0, len(drafts) - 1, context_tokens, sum(drafts), len(set(drafts)) - 1)
        fitted_s = float(np.dot(columns, self._terms)) if self._terms else 0.0
        if fitted_s > 0:  # of nothing it would stay nothing for ever
            elapsed_s = min(elapsed_s, _MOST_OFF * fitted_s)
        self._fit.add(columns, elapsed_s)
        self._num_drafted = self._num_drafted * _DECAY + any(drafts)
        num_samples = self._fit.num_samples
        if num_samples >= _LEAST_SAMPLES and num_samples % _FIT_EVERY == 0:
            self._terms = self._fit.coefficients()
            plain_s = float(np.dot(columns[:3], self._terms[:3]))
            if plain_s > 0:
                self.costs = self._blended(*(term / plain_s for term in self._terms[3:]))

    def _blended(self, row: float, length: float) -> DraftCosts:
        """What was measured once little is not believed against the guess."""
        weight = self._num_drafted / (self._num_drafted + _TRUST)
        return DraftCosts(
            row=_GUESS.row + weight * (min(_MOST.row, max(_LEAST.row, row)) - _GUESS.row),
            length=_GUESS.length
            + weight * (min(_MOST.length, max(_LEAST.length, length)) - _GUESS.length),
        )
