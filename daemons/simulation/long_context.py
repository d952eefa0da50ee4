"""Figure 12 of the arXiv paper: the highest Poisson rate at which prompts of one length keep their objectives.

Four nodes; prompts of 16k to 128k tokens of which half is shared, 512 tokens of answer, about 100 requests a point,
the paper's grid of rates. P90 TTFT may be 10 times, P90 TBT 5 times what one request alone takes.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

import numpy as np

from daemons.simulation.coupled import CoupledCluster, CoupledPlan
from daemons.simulation.disaggregated import DisaggregatedCluster, DisaggregatedPlan
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.outcome import RequestOutcome
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest

RATES: Final = {
    16_384: (0.1, 0.2, 0.5, 1.0, 1.25, 1.5),
    32_768: (0.1, 0.2, 0.5, 0.6),
    65_536: (0.05, 0.1, 0.2, 0.3, 0.4),
    131_072: (0.02, 0.05, 0.1, 0.11, 0.12, 0.14),
}
"""Requests per second, by tokens of a prompt."""
CLUSTERS: Final[dict[str, CoupledPlan | DisaggregatedPlan]] = {
    "serial": CoupledPlan(4, "serial"),
    "3P+1D": DisaggregatedPlan(3, 1),
    "today's vLLM": CoupledPlan(4, "chunked", has_prefix_cache=True),
}
_NUM_REQUESTS, _ANSWER_TOKENS = 100, 512
_TTFT_FACTOR, _TBT_FACTOR = 10.0, 5.0
_SEED = 1


def best_rates(profile: HardwareProfile) -> Iterator[tuple[int, str, float]]:
    """(prompt tokens, cluster, requests per second); 0 where not even the lowest rate will do."""
    for num_tokens, rates in RATES.items():
        for name, plan in CLUSTERS.items():
            passed = [rate for rate in rates if _keeps(plan, num_tokens, rate, profile)]
            yield num_tokens, name, max(passed, default=0.0)


def traffic(num_tokens: int, requests_per_s: float) -> list[TraceRequest]:
    """The first half of every prompt is the same."""
    random, now_s, first_new = Random(_SEED), 0.0, 1 << 32
    num_shared = num_tokens // BLOCK_TOKENS // 2
    num_new = num_tokens // BLOCK_TOKENS - num_shared
    made = []
    for number in range(_NUM_REQUESTS):
        new = range(first_new + number * num_new, first_new + (number + 1) * num_new)
        blocks = (*range(num_shared), *new)
        made.append(TraceRequest(number, now_s, num_tokens, _ANSWER_TOKENS, blocks))
        now_s += random.expovariate(requests_per_s)
    return made


def _keeps(
    plan: CoupledPlan | DisaggregatedPlan,
    num_tokens: int,
    requests_per_s: float,
    profile: HardwareProfile,
) -> bool:
    requests = traffic(num_tokens, requests_per_s)
    outcomes = _outcomes(plan, requests, profile)
    num_cached = 0 if plan == CLUSTERS["serial"] else num_tokens // 2
    ttft_slo_s = _TTFT_FACTOR * profile.prefill_s(num_tokens, num_cached)
    tbt_slo_s = _TBT_FACTOR * profile.step_s(1, num_tokens)
    return (
        float(np.percentile([outcome.ttft_s for outcome in outcomes], 90)) <= ttft_slo_s
        and float(np.percentile([outcome.tbt_s for outcome in outcomes], 90)) <= tbt_slo_s
    )


def _outcomes(
    plan: CoupledPlan | DisaggregatedPlan,
    requests: Sequence[TraceRequest],
    profile: HardwareProfile,
) -> list[RequestOutcome]:
    if isinstance(plan, CoupledPlan):
        return CoupledCluster(plan, profile).run(requests)
    return DisaggregatedCluster(plan, profile).run(requests)
