"""What became of a cluster's goodput under a load that is too much for it: part of the result of `mcctl bench load`."""

import msgspec

from daemons.core.units import format_duration
from daemons.simulation.outcome import Spread


class Overload(msgspec.Struct, frozen=True, kw_only=True):
    """The same traffic `factor` times as dense for as long, right after the first; times are of answered requests."""

    factor: float
    num_requests: int
    num_answered: int
    num_rejected: int
    num_failed: int
    num_not_sent: int
    good_per_s: float
    goodput_kept: float
    """As a multiple of the first load's `good_per_s`; 0 where that had none."""
    ttft_s: Spread
    tbt_s: Spread
    ttft_p90_of_slo: float
    tbt_p90_of_slo: float


def overload_rows(found: Overload) -> list[tuple[str, str]]:
    """For people."""
    times = f"at {found.factor:g} times the load"
    left_out = found.num_failed + found.num_not_sent
    return [
        (
            times,
            f"{found.num_requests} requests, {found.num_answered} answered, {found.num_rejected} rejected, "
            f"{left_out} failed or not sent",
        ),
        ("goodput then", f"{found.good_per_s:.2f}/s, {found.goodput_kept:.0%} of that before"),
        (
            "TTFT, TBT p90 then",
            f"{format_duration(found.ttft_s.p90)}, {format_duration(found.tbt_s.p90)}: "
            f"{found.ttft_p90_of_slo:.0%} and {found.tbt_p90_of_slo:.0%} of the objectives",
        ),
    ]
