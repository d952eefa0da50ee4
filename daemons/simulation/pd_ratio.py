"""Figure 15 of the FAST'25 paper: 16 nodes split into prefill and decode in seven ways, on the synthetic trace.

The trace is not at hand, so traffic is made up with what is published of it: number, rate and lengths of its requests,
the share of its blocks that were seen before, and how much of that caches of several sizes find. Here a document of
log-normal length is asked about three times, with exponential pauses.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

from daemons.simulation.disaggregated import DisaggregatedPlan
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.outcome import Objectives, SimulationResult
from daemons.simulation.simulate import simulate
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest, in_order

NUM_NODES: Final = 16
OBJECTIVES: Final = Objectives(10.0, 0.1)
_NUM_DOCUMENTS, _NUM_ASKS = 1331, 3
_REQUESTS_PER_S = 3.91
_MEDIAN_TOKENS, _SIGMA, _MOST_TOKENS = 10_400, 0.8, 190_000
_QUESTION_TOKENS = 600
_PAUSE_S = 120.0
"""Then caches of 1, 4 and 10 million tokens find of it what they find of the paper's trace."""
_ANSWER_MEDIAN_TOKENS, _ANSWER_SIGMA = 108, 0.8
_SEED = 1


def splits(profile: HardwareProfile, num_prefills: tuple[int, ...]) -> Iterator[SimulationResult]:
    """With the paper's own policy."""
    requests = traffic()
    for number in num_prefills:
        plan = DisaggregatedPlan(
            number, NUM_NODES - number, "kvcache-centric", expects_siblings=False
        )
        yield simulate(requests, plan, profile, OBJECTIVES)


def traffic() -> list[TraceRequest]:
    """Questions in the order of their times; they come as a Poisson process."""
    random, next_block = Random(_SEED), 0
    span_s = _NUM_DOCUMENTS * _NUM_ASKS / _REQUESTS_PER_S
    asks: list[tuple[float, int, tuple[int, ...]]] = []
    for _ in range(_NUM_DOCUMENTS):
        document = min(_MOST_TOKENS, int(_MEDIAN_TOKENS * random.lognormvariate(0.0, _SIGMA)))
        num_shared = document // BLOCK_TOKENS
        shared = tuple(range(next_block, next_block + num_shared))
        next_block += num_shared
        num_tokens = document + _QUESTION_TOKENS
        num_new = num_tokens // BLOCK_TOKENS - num_shared
        at_s = random.uniform(0.0, span_s)
        for _ in range(_NUM_ASKS):
            blocks = (*shared, *range(next_block, next_block + num_new))
            asks.append((at_s, num_tokens, blocks))
            next_block += num_new
            at_s += random.expovariate(1 / _PAUSE_S)
    now_s, made = 0.0, []
    for _, num_tokens, blocks in sorted(asks):
        answer = max(1, int(_ANSWER_MEDIAN_TOKENS * random.lognormvariate(0.0, _ANSWER_SIGMA)))
        made.append(TraceRequest(0, now_s, num_tokens, answer, blocks))
        now_s += random.expovariate(_REQUESTS_PER_S)
    return in_order(made)
