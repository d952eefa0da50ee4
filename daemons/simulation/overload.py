"""Table 3 of the arXiv paper: rejections without and with early rejection, on traffic that is too much for all.

The cluster and the replay speed are theirs, 8P+8D and twice as fast. Their trace and objectives are not published, so
the time between tokens that is asked for is one at which as many as there are rejected without early rejection.

In each of the three a decode node that is above its objective turns away whose KV comes, after the prefill was made for
nothing (section 7.1, the paper's baseline, and its double check otherwise). Early rejection asks the same of the decode
pool before the prefill: as it is, or as it will be then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from daemons.simulation.disaggregated import DisaggregatedCluster, DisaggregatedPlan
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.trace import TraceRequest, at_rate

_RATE: Final = 2.0
_MAX_REQUESTS: Final = 5000
_TTFT_S, _TBT_S = 30.0, 0.055


def _plan(admission: str, tbt_slo_s: float) -> DisaggregatedPlan:
    return DisaggregatedPlan(
        8,
        8,
        "kvcache-centric",
        admission=admission,
        ttft_slo_s=_TTFT_S,
        tbt_slo_s=tbt_slo_s,
        decode_slo_s=_TBT_S,
        expects_siblings=False,
    )


OVERLOADS: Final = {
    "none": _plan("current-load", 0.0),
    "current": _plan("current-load", _TBT_S),
    "predicted": _plan("predicted-load", _TBT_S),
}


@dataclass(frozen=True, slots=True)
class Rejections:
    """`share` of all requests; `wasted_fraction` of all prefill time went into some of these."""

    share: float
    wasted_fraction: float


def rejections(
    requests: Sequence[TraceRequest], plan: DisaggregatedPlan, profile: HardwareProfile
) -> Rejections:
    """Of the first _MAX_REQUESTS."""
    asked = at_rate(requests[:_MAX_REQUESTS], _RATE)
    outcomes = DisaggregatedCluster(plan, profile).run(asked)
    rejected = [outcome for outcome in outcomes if outcome.why_rejected]
    wasted_s, all_s = (sum(each.prefill_s for each in of) for of in (rejected, outcomes))
    return Rejections(len(rejected) / max(1, len(outcomes)), wasted_s / all_s if all_s else 0.0)
