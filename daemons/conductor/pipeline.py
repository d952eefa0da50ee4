"""Chunked pipeline parallelism: a long prompt over a group of prefill instances, each with a range of the layers
(arXiv 2407.00079, section 5.1). Only among instances that say they can.

A prompt of C chunks over S stages: chunk i takes t_i / S on each stage, and later chunks take longer, so all of it
takes (sum of t_i + (S - 1) * t_C) / S, as a flow shop whose jobs take the same time on every machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from daemons.conductor.latency import CostModel


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    """`max_stages` 1: none. What is not longer than two chunks is computed alone."""

    max_stages: int = 1
    chunk_tokens: int = 4096


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`others`: positions of those that join in, as they were given. All begin together and are busy for `work_s`."""

    others: tuple[int, ...]
    queue_s: float
    work_s: float

    @property
    def total_s(self) -> float:
        return self.queue_s + self.work_s


def pipelined_s(
    cost: CostModel, num_tokens: int, num_cached: int, *, num_stages: int, chunk_tokens: int
) -> float:
    """Compute of a prompt over so many stages; of one, what `prefill_s` says."""
    whole_s = cost.prefill_s(num_tokens, num_cached) - cost.fixed_s
    last = min(chunk_tokens, max(1, num_tokens - num_cached))
    last_s = cost.prefill_s(num_tokens, num_tokens - last) - cost.fixed_s
    return cost.fixed_s + (whole_s + (num_stages - 1) * last_s) / num_stages


@dataclass(frozen=True, slots=True)
class Prompt:
    """The one instance it would go to, and what that would take there."""

    num_tokens: int
    num_cached: int
    cost: CostModel
    queue_s: float
    load_s: float
    alone_s: float
    """Load and compute, which overlap."""


def choose_pipeline(
    prompt: Prompt, queues_s: Sequence[float], limits: PipelineLimits
) -> Pipeline | None:
    """The group that saves the most, or None. `queues_s`: of the others that can join in.

    What it saves the request must be more than what it costs all others: the filling of the pipeline, and the time in
    which some of the group wait for the last to be free.
    """
    if prompt.num_tokens - prompt.num_cached <= 2 * limits.chunk_tokens:
        return None
    nearest = sorted(range(len(queues_s)), key=lambda position: queues_s[position])
    best, best_gain_s = None, 0.0
    for num_stages in range(2, min(limits.max_stages, len(queues_s) + 1) + 1):
        group = _group(prompt, queues_s, nearest[: num_stages - 1], limits.chunk_tokens)
        saved_s = prompt.queue_s + prompt.alone_s - group.total_s
        waits_s = group.queue_s - prompt.queue_s
        waits_s += sum(group.queue_s - queues_s[position] for position in group.others)
        spent_s = num_stages * group.work_s - prompt.alone_s + waits_s
        if saved_s - spent_s > best_gain_s:
            best, best_gain_s = group, saved_s - spent_s
    return best


def _group(
    prompt: Prompt, queues_s: Sequence[float], others: Sequence[int], chunk_tokens: int
) -> Pipeline:
    num_stages = len(others) + 1
    compute_s = pipelined_s(
        prompt.cost,
        prompt.num_tokens,
        prompt.num_cached,
        num_stages=num_stages,
        chunk_tokens=chunk_tokens,
    )
    queue_s = max(prompt.queue_s, *(queues_s[position] for position in others))
    return Pipeline(tuple(others), queue_s, max(compute_s, prompt.load_s / num_stages))
