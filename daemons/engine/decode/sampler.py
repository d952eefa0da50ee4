"""From logits to a token; a request's choice depends on (seed, position) and on nothing else.

So a request that is retried on another node, or decoded in other company, says the same words.
"""

import secrets
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

# top-p sorts only this many candidates first: nearly always enough, and 30x cheaper than all.
NUCLEUS_GUESS = 256


class SamplingParams(Protocol):
    """What the sampler reads of a request's parameters."""

    @property
    def temperature(self) -> float: ...

    @property
    def top_p(self) -> float: ...

    @property
    def top_k(self) -> int: ...

    @property
    def seed(self) -> int | None: ...


class Sampler:
    """One request's sampler. Temperature 0 is greedy; top_k 0 and top_p 1 do not restrict."""

    def __init__(self, params: SamplingParams) -> None:
        self.is_greedy = params.temperature == 0 or params.top_k == 1
        self.seed = secrets.randbits(63) if params.seed is None else params.seed
        self._temperature = params.temperature
        self._top_p = params.top_p
        self._top_k = params.top_k

    def sample(self, logits: torch.Tensor, position: int) -> int:
        """The token to stand at `position`, from float32 logits [vocab]."""
        if self.is_greedy:
            return int(logits.argmax())  # the lowest id wins a tie
        scores = logits.double() / self._temperature
        ids: torch.Tensor | None = None
        if 0 < self._top_k < len(scores):
            scores, ids = scores.topk(self._top_k)
        probabilities = scores.softmax(dim=-1)
        if self._top_p < 1:
            probabilities, kept = nucleus(probabilities, self._top_p)
            ids = kept if ids is None else ids[kept]
        chosen = inverse_cdf(probabilities, uniform(self.seed, position))
        return chosen if ids is None else int(ids[chosen])


def sample_drafted(
    samplers: Sequence[Sampler],
    logits: torch.Tensor,
    drafts: Sequence[tuple[int, Sequence[int]]],
) -> list[tuple[int, ...]]:
    """The tokens that single steps would have sampled: one, and one more behind each draft that equals it.

    `drafts`: of each row (position to sample at, tokens drafted from there on); `logits` [row, vocab] have one row for
    that position and one behind each draft. Greedy rows share one argmax.
    """
    best: list[int] = (
        logits.argmax(dim=-1).tolist() if any(sampler.is_greedy for sampler in samplers) else []
    )
    first = 0
    made = []
    for sampler, (position, draft) in zip(samplers, drafts, strict=True):
        tokens: list[int] = []
        for at in range(len(draft) + 1):
            row = first + at
            tokens.append(
                best[row] if sampler.is_greedy else sampler.sample(logits[row], position + at)
            )
            if at < len(draft) and tokens[-1] != draft[at]:
                break
        made.append(tuple(tokens))
        first += len(draft) + 1
    return made


def nucleus(probabilities: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The fewest most likely candidates that together reach `top_p`, and where they stood."""
    for size in (min(NUCLEUS_GUESS, len(probabilities)), len(probabilities)):
        ordered, kept = probabilities.topk(size)
        total = ordered.cumsum(dim=-1)
        if total[-1] >= top_p:
            break
    count = int((total < top_p).sum()) + 1
    return ordered[:count], kept[:count]


def uniform(seed: int, position: int) -> float:
    """In [0, 1): a counter-based generator, so position n needs no history."""
    key = np.array([seed % 2**64, position], dtype=np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key)).random())


def inverse_cdf(probabilities: torch.Tensor, point: float) -> int:
    """Index whose share of the summed probabilities holds `point` of the whole."""
    total = probabilities.cumsum(dim=-1)
    at = int(torch.searchsorted(total, total[-1] * point, right=True))
    return min(at, len(total) - 1)
