"""What `mcctl simulate` prints: columns of runs, tiers and comparisons, and the facts of a plan."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from daemons.core.units import format_count, format_duration
from daemons.simulation.capacity import CapacityPoint
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.outcome import SimulationResult
from daemons.simulation.reproduce import Comparison
from daemons.simulation.sizing import MemoryChoice
from daemons.simulation.trace import TraceRequest
from mcctl import render
from mcctl.render import Column


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `simulate plan --output json` prints; fields are only ever added."""

    num_requests: int
    requests_per_s: float
    mean_input_tokens: float
    mean_output_tokens: float
    distinct_tokens: int
    reuse_limit: float
    hit_curve: list[CapacityPoint]
    clusters: list[SimulationResult]
    best_cluster: str
    """Of those with the most goodput the one with the shortest mean TTFT."""
    network_gbit_s: float
    """What a node of it sends on average."""
    memory: list[MemoryChoice]
    """Ways to equip the prefill nodes of that cluster."""
    best_memory: str
    """The cheapest that is about as good as the best."""


def show_tiers(results: Sequence[SimulationResult]) -> None:
    rows = [(result, tier) for result in results for tier in result.tiers]
    render.show_table("where reused prompt tokens came from", TIER_COLUMNS, rows)


def title(trace: str, requests: Sequence[TraceRequest]) -> str:
    span_s = max(requests[-1].arrival_s, 1e-9)
    return (
        f"{Path(trace).name}: {format_count(len(requests), 'request')} in {format_duration(span_s)}, "
        f"{len(requests) / span_s:.2f} a second"
    )


def show_plan(result: PlanResult, profile: HardwareProfile, nodes: int) -> None:
    token_gb = profile.kv.bytes_per_token / 1e9
    render.show_facts(
        [
            ("requests", f"{result.num_requests}, {result.requests_per_s:.2f} a second"),
            ("prompt", f"{result.mean_input_tokens:,.0f} tokens on average"),
            ("answer", f"{result.mean_output_tokens:,.0f} tokens on average"),
            (
                "reusable",
                f"{result.reuse_limit:.1%} of all prompt tokens, with a cache without end",
            ),
            ("all of it", f"{_bytes(result.distinct_tokens * token_gb)} of KV"),
        ]
    )
    columns = [
        Column("capacity", lambda point: _capacity(point), is_number=True),
        Column("KV", lambda point: _bytes(point.capacity_tokens * token_gb), is_number=True),
        Column("eviction", lambda point: point.eviction, extra=1),
        Column("hits", lambda point: f"{point.hit_fraction:.1%}", is_number=True),
        Column("", lambda point: _bar(point.hit_fraction / max(result.reuse_limit, 1e-9))),
    ]
    render.show_table("one cache of this size would find", columns, result.hit_curve)
    render.show_table(format_count(nodes, "node"), RUN_COLUMNS, result.clusters)
    best = next(run for run in result.clusters if run.cluster == result.best_cluster)
    render.note(
        f"best here: {best.cluster}, {best.goodput:.1%} of requests within both objectives; "
        f"of those alike the one with the shortest mean TTFT, {format_duration(best.ttft_s.mean)}; "
        f"its nodes send {result.network_gbit_s:.1f} Gbit/s on average"
    )
    render.show_table(
        f"memory of each of its {best.num_prefills} prefill nodes",
        _memory_columns(token_gb),
        result.memory,
    )
    bought = next(choice for choice in result.memory if choice.name == result.best_memory)
    ssd = f" and {_bytes(bought.ssd_tokens * token_gb)} of SSD" if bought.ssd_tokens else ""
    render.note(
        f"buy for each prefill node: {_bytes(bought.dram_tokens * token_gb)} of DRAM{ssd}; the cheapest here "
        "within half a point of goodput and a tenth of mean TTFT of the best"
    )


def _memory_columns(token_gb: float) -> list[Column]:
    def hits(choice: MemoryChoice, tier: str) -> str:
        found = [use.hit_fraction for use in choice.run.tiers if use.tier == tier]
        return f"{found[0]:.1%}" if found else "-"

    return [
        Column("", lambda choice: choice.name),
        Column("DRAM", lambda choice: _bytes(choice.dram_tokens * token_gb), is_number=True),
        Column("SSD", lambda choice: _bytes(choice.ssd_tokens * token_gb) or "-", is_number=True),
        Column("goodput", _percent(lambda choice: choice.run.goodput), is_number=True),
        Column("TTFT mean", lambda choice: format_duration(choice.run.ttft_s.mean), is_number=True),
        Column("p90", lambda choice: format_duration(choice.run.ttft_s.p90), is_number=True),
        Column("DRAM hits", lambda choice: hits(choice, "dram"), is_number=True),
        Column("SSD hits", lambda choice: hits(choice, "ssd"), is_number=True),
    ]


def _capacity(point: CapacityPoint) -> str:
    return f"{point.capacity_tokens / 1e6:g} M tokens" if point.capacity_tokens else "no end"


def _bytes(gigabytes: float) -> str:
    if gigabytes < 100:
        return f"{gigabytes:.1f} GB" if gigabytes else ""
    return f"{gigabytes / 1000:,.1f} TB"


def _bar(fraction: float) -> str:
    return "█" * round(30 * min(1.0, fraction))


def _percent(value: Callable[[Any], float]) -> Callable[[Any], str]:
    return lambda row: f"{value(row):.1%}"


def _seconds(value: Callable[[Any], float]) -> Callable[[Any], str]:
    """Of the requests that were served; where none was, there is no time."""
    return lambda run: format_duration(value(run)) if run.num_rejected < run.num_requests else "-"


RUN_COLUMNS: Final = [
    Column("cluster", lambda run: run.cluster),
    Column("policy", lambda run: run.policy),
    Column("goodput", _percent(lambda run: run.goodput), is_number=True),
    Column("rejected", lambda run: str(run.num_rejected), is_number=True, extra=2),
    Column("TTFT mean", _seconds(lambda run: run.ttft_s.mean), is_number=True),
    Column("p50", _seconds(lambda run: run.ttft_s.p50), is_number=True, extra=1),
    Column("p90", _seconds(lambda run: run.ttft_s.p90), is_number=True),
    Column("p99", _seconds(lambda run: run.ttft_s.p99), is_number=True, extra=3),
    Column("TBT mean", _seconds(lambda run: run.tbt_s.mean), is_number=True),
    Column("TBT p90", _seconds(lambda run: run.tbt_s.p90), is_number=True),
    Column("reused", _percent(lambda run: run.reused_fraction), is_number=True),
    Column("pulled", _percent(lambda run: run.remote_fraction), is_number=True, extra=4),
    Column(
        "prefill a request",
        _seconds(lambda run: run.prefill_s_per_request),
        is_number=True,
        extra=5,
    ),
    Column("error", _percent(lambda run: run.prediction_error), is_number=True, extra=6),
    Column("eviction", lambda run: run.eviction or "-", extra=7),
    Column("shared", lambda run: str(run.num_pipelined or "-"), is_number=True, extra=8),
    Column("hot copies", lambda run: str(run.num_hot_copies or "-"), is_number=True, extra=9),
    Column("admission", lambda run: run.admission or "-", extra=8),
]

TIER_COLUMNS: Final = [
    Column("cluster", lambda row: row[0].cluster),
    Column("policy", lambda row: row[0].policy),
    Column("eviction", lambda row: row[0].eviction, extra=2),
    Column("tier", lambda row: row[1].tier),
    Column("size", lambda row: _bytes(row[1].capacity_gb), is_number=True),
    Column("hits", _percent(lambda row: row[1].hit_fraction), is_number=True),
    Column("read", lambda row: _bytes(row[1].read_gb) or "-", is_number=True),
    Column("written", lambda row: _bytes(row[1].written_gb) or "-", is_number=True),
    Column("lost", lambda row: _bytes(row[0].lost_gb) or "-", is_number=True, extra=1),
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
