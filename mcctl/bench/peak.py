"""Up to which load goodput grows: that load is what `mcctl bench load --overload` multiplies."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from mcctl.bench.load import LoadResult
from mcctl.bench.overload import Overload

STEP: Final = 1.25
_IN_TIME: Final = 0.95
"""Share of requests: where fewer are, more load is not more goodput."""
_GROWTH: Final = 1.05
"""Less is chance."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The load with the most goodput of those measured, `factor` times the first.

    `is_found`: a higher load has no more of it.
    """

    load: LoadResult
    factor: float
    is_found: bool


def find_peak(first: LoadResult, measure: Callable[[float], LoadResult], max_steps: int) -> Peak:
    """`measure`: that multiple of the first load. Without a step the first is taken for it."""
    best, best_factor, factor = first, 1.0, 1.0
    is_found = max_steps == 0 or first.goodput < _IN_TIME or not first.offered_per_s
    for _ in range(max_steps):
        if is_found:
            break
        factor *= STEP
        found = measure(factor)
        grows = found.good_per_s >= _GROWTH * best.good_per_s
        if grows:
            best, best_factor = found, factor
        is_found = not grows or found.goodput < _IN_TIME
    return Peak(best, best_factor, is_found)


def with_overload(first: LoadResult, peak: Peak, high: LoadResult, factor: float) -> LoadResult:
    """The first load, and what became of the peak's goodput in the last, `factor` times as dense as the peak's."""
    best = peak.load
    overload = Overload(
        factor=factor,
        num_requests=high.num_requests,
        num_answered=high.num_answered,
        num_rejected=high.num_rejected,
        num_failed=high.num_failed,
        num_not_sent=high.num_not_sent,
        good_per_s=high.good_per_s,
        goodput_kept=high.good_per_s / best.good_per_s if best.good_per_s else 0.0,
        ttft_s=high.ttft_s,
        tbt_s=high.tbt_s,
        ttft_p90_of_slo=high.ttft_s.p90 / high.ttft_slo_s,
        tbt_p90_of_slo=high.tbt_s.p90 / high.tbt_slo_s,
        offered_per_s=high.offered_per_s,
        peak_offered_per_s=best.offered_per_s,
        peak_good_per_s=best.good_per_s,
        peak_goodput=best.goodput,
        is_peak=peak.is_found,
        of_peak_load=high.offered_per_s / best.offered_per_s if best.offered_per_s else 0.0,
    )
    return msgspec.structs.replace(first, overload=overload)
