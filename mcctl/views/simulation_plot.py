"""The pictures of `mcctl simulate`: distributions of times, load over time, what a cache of each size finds."""

from collections.abc import Iterable, Sequence

from daemons.simulation.capacity import CapacityPoint
from daemons.simulation.outcome import SimulationResult
from mcctl.views.line_plot import Chart, Line, page
from mcctl.views.plan import PlanResult


def run_charts(results: Sequence[SimulationResult]) -> str:
    """SVG: share of requests within a time, and how busy the instances were."""
    evictions = {result.eviction for result in results if result.eviction}
    names = [
        f"{result.cluster}, {result.policy}"
        + (f", {result.eviction}" if result.eviction and len(evictions) > 1 else "")
        for result in results
    ]
    named = list(zip(names, results, strict=True))
    # The slowest run's tail must not flatten all others.
    longest_s = 2 * max((result.ttft_s.p90 for result in results), default=0.0)
    return page(
        [
            Chart(
                "Share of requests by time to first token",
                "seconds",
                [Line(name, _cumulative(result.ttft_percentiles_s)) for name, result in named],
                max_x=longest_s,
            ),
            Chart(
                "Share of requests by time between tokens, the slowest tenth of each",
                "seconds",
                [Line(name, _cumulative(result.tbt_percentiles_s)) for name, result in named],
            ),
            Chart(
                "Share of prefill instances that are busy",
                "seconds",
                [
                    Line(name, [(sample.time_s, sample.prefill_busy) for sample in result.load])
                    for name, result in named
                ],
            ),
            Chart(
                "Sequences in decode",
                "seconds",
                [
                    Line(name, [(sample.time_s, sample.decode_sequences) for sample in result.load])
                    for name, result in named
                ],
            ),
            Chart(
                "Share of prompt tokens that were reused, by the tier they came from",
                "seconds",
                [line for name, result in named for line in _hit_lines(name, result)],
            ),
        ]
    )


def plan_charts(plan: PlanResult) -> str:
    """SVG: hit rate over capacity, up to where more finds nothing more, and goodput over the split and the rate."""
    curve = plan.hit_curve
    hits = {
        name: [(0.0, 0.0), *_sized(point for point in curve if point.eviction == name)]
        for name in dict.fromkeys(point.eviction for point in curve)
    }
    largest = max(size for size, _ in next(iter(hits.values())))
    splits = [(float(result.num_prefills), result.goodput) for result in plan.clusters]
    rates = [(point.requests_per_s, point.goodput) for point in plan.rates]
    by_rate = Chart("Goodput by rate", "requests a second", [Line(plan.best_cluster, rates)])
    return page(
        [
            Chart(
                "Share of prompt tokens found in one cache",
                "capacity, million tokens",
                [Line(name, points) for name, points in hits.items()],
                max_x=min(largest, max(1.0, plan.distinct_tokens / 1e6)),
            ),
            Chart("Goodput by split", "prefill nodes", [Line("all nodes together", splits)]),
            *([by_rate] if len(rates) > 1 else ()),
        ]
    )


def _hit_lines(name: str, result: SimulationResult) -> list[Line]:
    """One for each tier that the cluster has; of one without, its own cache."""
    tiers = [tier.tier for tier in result.tiers] or ["dram"]
    return [
        Line(
            f"{name}: {tier}" if len(tiers) > 1 else name,
            [(sample.time_s, float(getattr(sample, tier))) for sample in result.hits],
        )
        for tier in tiers
    ]


def _sized(curve: Iterable[CapacityPoint]) -> list[tuple[float, float]]:
    return [(p.capacity_tokens / 1e6, p.hit_fraction) for p in curve if p.capacity_tokens]


def _cumulative(percentiles: Sequence[float]) -> list[tuple[float, float]]:
    return [(value, index / 100) for index, value in enumerate(percentiles)]
