"""What `mcctl bench load` tells people of what it sent."""

import msgspec

from daemons.simulation.outcome import Spread
from mcctl.bench.load import LoadResult, load_rows

_NONE = Spread(mean=0.0, p50=0.0, p90=0.0, p99=0.0)
_FEW = LoadResult(
    source="documents",
    model="m",
    num_requests=6,
    num_answered=0,
    num_rejected=6,
    num_failed=0,
    num_not_sent=0,
    why_failed=None,
    offered_per_s=2.5,
    answered_per_s=0.0,
    output_tokens_per_s=0.0,
    ttft_slo_s=2.0,
    tbt_slo_s=0.1,
    goodput=0.0,
    good_per_s=0.0,
    ttft_s=_NONE,
    tbt_s=_NONE,
    prompt_tokens=0,
    reused_fraction=0.0,
    prediction_error=0.0,
    warm_prediction_error=None,
    makespan_s=10.0,
    max_late_s=0.0,
    ttft_percentiles_s=[],
    tbt_percentiles_s=[],
    due_within_s=2.0,
)


def test_the_offered_rate_stands_beside_the_time_that_it_is_of() -> None:
    """Of a few requests it is by chance not the one that was asked for."""
    assert dict(load_rows(_FEW))["requests"] == "6, due within 2.00 s: 2.50/s offered"
    at_once = msgspec.structs.replace(_FEW, offered_per_s=0.0, due_within_s=0.0)
    assert dict(load_rows(at_once))["requests"] == "6, all at once"
