"""What became of a cluster's goodput under a load that is too much for it: part of the result of `mcctl bench load`."""

from typing import Final

import msgspec

from daemons.core.units import format_duration
from daemons.simulation.outcome import Spread


class Overload(msgspec.Struct, frozen=True, kw_only=True):
    """The same traffic `factor` times as dense as where goodput peaks, for as long; times are of answered requests."""

    factor: float
    num_requests: int
    num_answered: int
    num_rejected: int
    num_failed: int
    num_not_sent: int
    good_per_s: float
    goodput_kept: float
    """As a multiple of `peak_good_per_s`; 0 where that is 0."""
    ttft_s: Spread
    tbt_s: Spread
    ttft_p90_of_slo: float
    tbt_p90_of_slo: float
    offered_per_s: float = 0.0
    """0 where all are due at once."""
    peak_offered_per_s: float = 0.0
    """Of the load with the most goodput of those before: the first, and a quarter more as long as that is worth it."""
    peak_good_per_s: float = 0.0
    peak_goodput: float = 0.0
    """Share of its requests that met both objectives."""
    is_peak: bool = True
    """False: goodput still grew with the load when the steps were over. Without steps the first load is taken as it."""
    of_peak_load: float = 0.0
    """`offered_per_s` as a multiple of `peak_offered_per_s`; 0 where all are due at once."""


_NO_PEAK: Final = (
    "of no peak: nothing was in time before; lower --rate, or raise --ttft-slo and --tbt-slo"
)


def overload_rows(found: Overload) -> list[tuple[str, str]]:
    """For people."""
    left_out = found.num_failed + found.num_not_sent
    peak = (
        f"{found.peak_good_per_s:.2f}/s, where {found.peak_offered_per_s:.2f}/s are offered and "
        f"{found.peak_goodput:.0%} of them in time"
    )
    if not found.is_peak:
        peak += "; it still grew: begin with a higher --rate, or take more --peak-steps"
    times = f"at {found.factor:g} times that load"
    kept = f"{found.goodput_kept:.0%} of the peak" if found.peak_good_per_s else _NO_PEAK
    offered = f"{found.offered_per_s:.2f}/s offered, " if found.offered_per_s else ""
    return [
        ("goodput peaks at", peak),
        (
            times,
            f"{offered}{found.num_requests} requests, {found.num_answered} answered, {found.num_rejected} rejected, "
            f"{left_out} failed or not sent",
        ),
        ("goodput then", f"{found.good_per_s:.2f}/s, {kept}"),
        (
            "TTFT, TBT p90 then",
            f"{format_duration(found.ttft_s.p90)}, {format_duration(found.tbt_s.p90)}: "
            f"{found.ttft_p90_of_slo:.0%} and {found.tbt_p90_of_slo:.0%} of the objectives",
        ),
    ]
