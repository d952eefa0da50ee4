"""How many requests a second a cluster serves within the objectives: the same requests, denser or thinner, replayed."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from daemons.simulation.trace import TraceRequest

ENOUGH: Final = 0.9
"""Share of requests within both objectives."""
_MAX_DOUBLINGS: Final = 6
_STEPS: Final = 3
"""Each halves the gap between a rate that is served and one that is not."""


class RatePoint(msgspec.Struct, frozen=True, kw_only=True):
    requests_per_s: float
    goodput: float


def rate_curve(
    requests: Sequence[TraceRequest], goodput_at: Callable[[float], float], *, least_span_s: float
) -> list[RatePoint]:
    """By rate, around the highest that is served; `goodput_at` so many times the rate they come at. Empty for requests
    that all come at once. At none do they come within `least_span_s`: of a short burst much is served at any rate.
    """
    span_s = requests[-1].arrival_s
    if span_s <= 0:
        return []
    found: dict[float, float] = {1.0: goodput_at(1.0)}
    is_served = found[1.0] >= ENOUGH
    low = high = 1.0
    for _ in range(_MAX_DOUBLINGS):
        factor = max(found) * 2 if is_served else min(found) / 2
        if is_served and span_s / factor < least_span_s:
            break
        found[factor] = goodput_at(factor)
        if (found[factor] >= ENOUGH) != is_served:
            low, high = sorted((factor, factor / 2 if is_served else factor * 2))
            break
    for _ in range(_STEPS if low < high else 0):
        middle = (low + high) / 2
        found[middle] = goodput_at(middle)
        low, high = (middle, high) if found[middle] >= ENOUGH else (low, middle)
    rate = len(requests) / span_s
    return [
        RatePoint(requests_per_s=factor * rate, goodput=goodput)
        for factor, goodput in sorted(found.items())
    ]


def max_requests_per_s(curve: Sequence[RatePoint]) -> float:
    """0 where none was served."""
    return max((point.requests_per_s for point in curve if point.goodput >= ENOUGH), default=0.0)
