"""A hardware profile from what `mcctl bench serve` measured: least squares of the Conductor's cost model.

Errors count relative to what was measured, so that short prompts say as much as long ones. No term is negative.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from daemons.core.errors import ConfigError
from daemons.engine.cost_fit import PREFILL_SCALE, STEP_SCALE, LeastSquares
from daemons.simulation.hardware import DecodeTimes, PrefillTimes

_LEAST_BATCHES: Final = 2
_DETERMINED: Final = 1e-2
"""Least singular value, of columns of length 1: below it one term is nearly a sum of the others."""
_MORE_ROWS: Final = (
    "measure more lengths: mcctl bench serve --prefix 512 --prefix 2048 --prefix 4096 --suffix 64"
)


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """A prompt's time to first token on an idle cluster, without what it waited for KV to be loaded."""

    num_tokens: int
    num_cached: int
    elapsed_s: float

    @property
    def terms(self) -> tuple[float, float, float]:
        """What fixed_s, token_s and token_context_s are multiplied by, as in conductor/latency.py."""
        new = max(1, self.num_tokens - self.num_cached)
        return 1.0, float(new), new * (self.num_tokens - new / 2)

    def fitted_s(self, times: PrefillTimes) -> float:
        """The same by a profile."""
        return float(np.dot(self.terms, msgspec.structs.astuple(times)))


@dataclass(frozen=True, slots=True)
class StepSample:
    """One decode step of so many sequences."""

    num_sequences: int
    elapsed_s: float

    def fitted_s(self, times: DecodeTimes) -> float:
        """The same by a profile."""
        return times.step_s + times.sequence_s * (self.num_sequences - 1)


def fit_prefill(samples: Sequence[PrefillSample]) -> PrefillTimes:
    """Raises ConfigError where the samples leave a term open, saying what to measure."""
    if not samples or _rank(samples) < len(PREFILL_SCALE):
        lengths = sorted({sample.num_tokens for sample in samples})
        told = f"prompts of {', '.join(map(str, lengths))} tokens" if samples else "no prompts"
        raise ConfigError(
            f"{told} do not tell apart what a prompt costs once, a token, and the context before a token; {_MORE_ROWS}"
        )
    fit = LeastSquares(PREFILL_SCALE, alone=1, decay=1.0)
    for sample in samples:
        fit.add(_share(sample.terms, sample.elapsed_s), 1.0)
    times = PrefillTimes(*fit.coefficients())
    if times.token_s <= 0:
        raise ConfigError(
            f"these times to first token do not grow with the prompt: what was measured is noise; {_MORE_ROWS}, "
            "with more --repeats"
        )
    return times


def fit_decode(samples: Sequence[StepSample]) -> DecodeTimes:
    """`sequence_s` holds what a sequence's own context costs too: all of one run are about as long.

    Raises ConfigError where the samples leave a term open.
    """
    sizes = sorted({sample.num_sequences for sample in samples})
    if len(sizes) < _LEAST_BATCHES:
        told = f"{sizes[0]} at a time" if sizes else "none together"
        raise ConfigError(
            f"decode was measured with {told}: what one more sequence costs takes two batch sizes; "
            "mcctl bench serve measures 1, 4 and 8, so let it run to its end"
        )
    fit = LeastSquares(STEP_SCALE[:2], alone=0, decay=1.0)
    for sample in samples:
        fit.add(_share((1.0, sample.num_sequences - 1.0), sample.elapsed_s), 1.0)
    step_s, sequence_s = fit.coefficients()
    if step_s <= 0:
        raise ConfigError(
            "these decode rates leave nothing for the step itself: what was measured is noise; measure again, with "
            "mcctl bench serve --repeats 5"
        )
    return DecodeTimes(step_s=step_s, context_token_s=0.0, sequence_s=sequence_s)


def _share(terms: tuple[float, ...], elapsed_s: float) -> tuple[float, ...]:
    return tuple(term / elapsed_s for term in terms)


def _rank(samples: Sequence[PrefillSample]) -> int:
    rows = np.array([_share(sample.terms, sample.elapsed_s) for sample in samples]) * PREFILL_SCALE
    return int(np.linalg.matrix_rank(rows / np.linalg.norm(rows, axis=0), tol=_DETERMINED))
