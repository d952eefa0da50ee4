"""What `mcctl simulate` prints: columns of runs, tiers and comparisons."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from daemons.core.units import format_count, format_duration, format_milliseconds, format_seconds
from daemons.simulation.outcome import SimulationResult
from daemons.simulation.reproduce import Comparison
from daemons.simulation.trace import TraceRequest
from mcctl import render
from mcctl.render import Column


def show_tiers(results: Sequence[SimulationResult]) -> None:
    rows = [(result, tier) for result in results for tier in result.tiers]
    render.show_table("where reused prompt tokens came from", TIER_COLUMNS, rows)


def title(trace: str, requests: Sequence[TraceRequest]) -> str:
    span_s = max(requests[-1].arrival_s, 1e-9)
    return (
        f"{Path(trace).name}: {format_count(len(requests), 'request')} in {format_duration(span_s)}, "
        f"{len(requests) / span_s:.2f} a second"
    )


def size_text(gigabytes: float) -> str:
    """In a sentence."""
    if gigabytes >= 1000:
        return f"{gigabytes / 1000:,.1f} TB"
    return f"{gigabytes:.0f} GB" if gigabytes >= 100 else f"{gigabytes:.1f} GB"


def gigabytes(value: Callable[[Any], float]) -> Callable[[Any], str]:
    """Of a column: all in one unit. Nothing is a dash."""
    return lambda row: f"{value(row):,.1f} GB" if value(row) else "-"


def percent(value: Callable[[Any], float]) -> Callable[[Any], str]:
    return lambda row: f"{value(row):.1%}"


def seconds(value: Callable[[Any], float]) -> Callable[[Any], str]:
    """Of the requests that were served; where none was, there is no time."""
    return lambda run: format_seconds(value(run)) if run.num_rejected < run.num_requests else "-"


def milliseconds(value: Callable[[Any], float]) -> Callable[[Any], str]:
    """The same for times between tokens."""
    return lambda run: (
        format_milliseconds(value(run)) if run.num_rejected < run.num_requests else "-"
    )


RUN_COLUMNS: Final = [
    Column("cluster", lambda run: run.cluster),
    Column("policy", lambda run: run.policy),
    Column("goodput", percent(lambda run: run.goodput), is_number=True),
    Column("rejected", lambda run: str(run.num_rejected), is_number=True, extra=4),
    Column("TTFT mean", seconds(lambda run: run.ttft_s.mean), is_number=True),
    Column("TTFT p50", seconds(lambda run: run.ttft_s.p50), is_number=True, extra=3),
    Column("TTFT p90", seconds(lambda run: run.ttft_s.p90), is_number=True, extra=1),
    Column("TTFT p99", seconds(lambda run: run.ttft_s.p99), is_number=True, extra=5),
    Column("TBT mean", milliseconds(lambda run: run.tbt_s.mean), is_number=True, extra=2),
    Column("TBT p90", milliseconds(lambda run: run.tbt_s.p90), is_number=True),
    Column("reused", percent(lambda run: run.reused_fraction), is_number=True),
    Column("pulled", percent(lambda run: run.remote_fraction), is_number=True, extra=6),
    Column(
        "prefill a request",
        seconds(lambda run: run.prefill_s_per_request),
        is_number=True,
        extra=7,
    ),
    Column(
        "TTFT predicted off", percent(lambda run: run.prediction_error), is_number=True, extra=8
    ),
    Column("eviction", lambda run: run.eviction or "-", extra=9),
    Column(
        "over several nodes", lambda run: str(run.num_pipelined or "-"), is_number=True, extra=10
    ),
    Column("hot copies", lambda run: str(run.num_hot_copies or "-"), is_number=True, extra=11),
    Column("admission", lambda run: run.admission or "-", extra=10),
]

TIER_COLUMNS: Final = [
    Column("cluster", lambda row: row[0].cluster),
    Column("policy", lambda row: row[0].policy),
    Column("eviction", lambda row: row[0].eviction, extra=2),
    Column("tier", lambda row: row[1].tier),
    Column("size", gigabytes(lambda row: row[1].capacity_gb), is_number=True),
    Column("hits", percent(lambda row: row[1].hit_fraction), is_number=True),
    Column("read", gigabytes(lambda row: row[1].read_gb), is_number=True),
    Column("written", gigabytes(lambda row: row[1].written_gb), is_number=True),
    Column("lost", gigabytes(lambda row: row[0].lost_gb), is_number=True, extra=1),
]

POLICY_COLUMNS: Final = [
    Column("traffic", lambda row: row.traffic),
    Column("requests/s", lambda row: f"{row.requests_per_s:.2f}", is_number=True, extra=1),
    Column("policy", lambda row: row.policy),
    Column("goodput", percent(lambda row: row.goodput), is_number=True),
    Column("rejected", lambda row: str(row.num_rejected), is_number=True),
    Column("TTFT mean", lambda row: format_seconds(row.ttft_mean_s), is_number=True),
    Column("TTFT p90", lambda row: format_seconds(row.ttft_p90_s), is_number=True),
    Column("TBT p90", lambda row: format_milliseconds(row.tbt_p90_s), is_number=True, extra=3),
    Column("reused", percent(lambda row: row.reused_fraction), is_number=True, extra=2),
    Column("our goodput", lambda row: f"x{row.goodput_ratio:.3f}", is_number=True),
    Column("our TTFT", lambda row: f"x{row.ttft_ratio:.3f}", is_number=True),
    Column("", lambda row: "" if row.is_goal_met else "OUT"),
]

COMPARISON_COLUMNS: Final = [
    Column("figure", lambda row: row.figure),
    Column("what", lambda row: row.what),
    Column("ours", lambda row: f"{row.ours:.3f}", is_number=True),
    Column(
        "published",
        lambda row: "" if row.published is None else f"{row.published:.3f}",
        is_number=True,
    ),
    Column("tolerance", lambda row: _tolerance(row), is_number=True),
    Column("", lambda row: _verdict(row)),
    Column("note", lambda row: row.note, is_prose=True, extra=1),
]


def _tolerance(row: Comparison) -> str:
    if row.tolerance is None:
        return ""
    return f"{row.tolerance:.0%}" if row.is_relative else f"{row.tolerance:.3f}"


def _verdict(row: Comparison) -> str:
    if not row.is_goal:
        return ""
    return "within" if row.is_met else "OUT"
