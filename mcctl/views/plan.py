"""`mcctl simulate plan` for people: the answers in words, then the tables they come from."""

from typing import Final

import msgspec

from daemons.core.units import format_count, format_duration, format_seconds
from daemons.simulation.capacity import CapacityPoint
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.max_rate import ENOUGH, RatePoint
from daemons.simulation.outcome import SimulationResult
from daemons.simulation.sizing import MemoryChoice
from mcctl import render
from mcctl.render import Column
from mcctl.views.simulation import gigabytes, milliseconds, percent, seconds, size_text

_WORTH_IT: Final = 0.05
"""Of prompt tokens: below it a cache saves less than it costs to look after."""
_NEARLY_ALL: Final = 0.95


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
    rates: list[RatePoint]
    """Of the best cluster with the profile's memory: goodput when the same requests come at other rates."""
    max_requests_per_s: float
    """The highest of these at which nine of ten requests are within both objectives; 0: none of them."""


def show_plan(result: PlanResult, profile: HardwareProfile, nodes: int) -> None:
    """The answers in words, then the tables they come from, each with what to conclude from it."""
    token_gb = profile.kv.bytes_per_token / 1e9
    best = next(run for run in result.clusters if run.cluster == result.best_cluster)
    bought = next(choice for choice in result.memory if choice.name == result.best_memory)
    render.show_facts(_answers(result, best, bought, token_gb))
    sizes = [
        Column("cache of, tokens", lambda point: _in_full(point), is_number=True),
        Column("is, KV", gigabytes(lambda point: point.capacity_tokens * token_gb), is_number=True),
        Column("eviction", lambda point: point.eviction, extra=1),
        Column(
            "finds, of prompt tokens", lambda point: f"{point.hit_fraction:.1%}", is_number=True
        ),
        Column("", lambda point: _bar(point.hit_fraction / max(result.reuse_limit, 1e-9))),
    ]
    render.show_table("how much a cache of each size finds", sizes, result.hit_curve)
    enough = _enough(result)
    render.emit_line(
        f"Conclude: {_capacity(enough)} find {enough.hit_fraction:.1%}; what is larger finds hardly more.\n"
    )
    render.show_table(
        f"each way to split {format_count(nodes, 'node')}", PLAN_COLUMNS, result.clusters
    )
    render.emit_line(
        f"Conclude: take {best.cluster}; of those with as many requests within both objectives it has the "
        f"shortest mean TTFT, {format_duration(best.ttft_s.mean)}.\n"
    )
    render.show_table(
        f"each way to equip its {format_count(best.num_prefills, 'prefill node')}, sizes of one node",
        _memory_columns(token_gb),
        result.memory,
    )
    render.emit_line(
        f"Conclude: buy {_equipment(bought, token_gb)} for each prefill node; the cheapest here within half a point "
        "of requests within both objectives and a tenth of mean TTFT of the best."
    )


def _answers(
    result: PlanResult, best: SimulationResult, bought: MemoryChoice, token_gb: float
) -> list[tuple[str, str]]:
    """What an operator asks first."""
    is_worth_it = result.reuse_limit >= _WORTH_IT
    return [
        (
            "the traffic",
            f"{format_count(result.num_requests, 'request')}, {result.requests_per_s:.2f} a second; on average "
            f"{result.mean_input_tokens:,.0f} tokens of prompt and {result.mean_output_tokens:,.0f} of answer",
        ),
        (
            "is a cache worth it?",
            f"{'yes' if is_worth_it else 'hardly'}: {result.reuse_limit:.1%} of prompt tokens came before; "
            f"all that is new is {size_text(result.distinct_tokens * token_gb)} of KV",
        ),
        (
            "how many nodes of each kind?",
            f"{best.cluster}: {best.goodput:.1%} of requests within both objectives",
        ),
        ("how many requests a second?", _served(result)),
        ("how much memory?", f"{_equipment(bought, token_gb)} in each prefill node"),
        (
            "how fast a network?",
            f"each node sends {result.network_gbit_s:.1f} Gbit/s on average; bursts need several times that",
        ),
    ]


def _served(result: PlanResult) -> str:
    if not result.rates:
        return "all of these come at once: no rate can be told"
    if not result.max_requests_per_s:
        return f"not even {result.rates[0].requests_per_s:.2f} with {ENOUGH:.0%} within both objectives"
    least = "at least " if result.rates[-1].requests_per_s == result.max_requests_per_s else ""
    return (
        f"{least}{result.max_requests_per_s:.2f} like these on {result.best_cluster}, {ENOUGH:.0%} of them within both "
        "objectives"
    )


def _enough(result: PlanResult) -> CapacityPoint:
    """The smallest cache that finds nearly all there is to find."""
    first = [point for point in result.hit_curve if point.eviction == result.hit_curve[0].eviction]
    limit = _NEARLY_ALL * first[-1].hit_fraction
    return next(point for point in first if point.hit_fraction >= limit)


def _equipment(choice: MemoryChoice, token_gb: float) -> str:
    ssd = f" and {size_text(choice.ssd_tokens * token_gb)} of SSD" if choice.ssd_tokens else ""
    return f"{size_text(choice.dram_tokens * token_gb)} of DRAM{ssd}"


def _memory_columns(token_gb: float) -> list[Column]:
    def hits(choice: MemoryChoice, tier: str) -> str:
        found = [use.hit_fraction for use in choice.run.tiers if use.tier == tier]
        return f"{found[0]:.1%}" if found else "-"

    return [
        Column("equipment", lambda choice: choice.name),
        Column("DRAM", gigabytes(lambda choice: choice.dram_tokens * token_gb), is_number=True),
        Column("SSD", gigabytes(lambda choice: choice.ssd_tokens * token_gb), is_number=True),
        Column("within SLOs", percent(lambda choice: choice.run.goodput), is_number=True),
        Column("TTFT mean", lambda choice: format_seconds(choice.run.ttft_s.mean), is_number=True),
        Column("TTFT p90", lambda choice: format_seconds(choice.run.ttft_s.p90), is_number=True),
        Column("found in DRAM", lambda choice: hits(choice, "dram"), is_number=True),
        Column("on SSD", lambda choice: hits(choice, "ssd"), is_number=True),
    ]


def _capacity(point: CapacityPoint) -> str:
    if not point.capacity_tokens:
        return "no end"
    thousands = point.capacity_tokens / 1e3
    return f"{thousands:g} k tokens" if thousands < 1e3 else f"{thousands / 1e3:g} M tokens"


def _in_full(point: CapacityPoint) -> str:
    return f"{point.capacity_tokens:,}" if point.capacity_tokens else "no end"


def _bar(fraction: float) -> str:
    return "█" * round(30 * min(1.0, fraction))


PLAN_COLUMNS: Final = [
    Column("prefill+decode", lambda run: run.cluster),
    Column("within SLOs", percent(lambda run: run.goodput), is_number=True),
    Column("rejected", lambda run: str(run.num_rejected), is_number=True, extra=2),
    Column("TTFT mean", seconds(lambda run: run.ttft_s.mean), is_number=True),
    Column("TTFT p90", seconds(lambda run: run.ttft_s.p90), is_number=True),
    Column("TTFT p99", seconds(lambda run: run.ttft_s.p99), is_number=True, extra=1),
    Column("TBT mean", milliseconds(lambda run: run.tbt_s.mean), is_number=True),
    Column("TBT p90", milliseconds(lambda run: run.tbt_s.p90), is_number=True),
    Column("prompt reused", percent(lambda run: run.reused_fraction), is_number=True),
    Column("from other nodes", percent(lambda run: run.remote_fraction), is_number=True, extra=3),
    Column(
        "prefill a request",
        seconds(lambda run: run.prefill_s_per_request),
        is_number=True,
        extra=4,
    ),
]
"""Of `simulate plan`; percentages of prompt tokens but for the second, which is of requests."""
