"""The load at which goodput peaks, of a cluster that serves so much and no more."""

import msgspec
import pytest

from daemons.simulation.outcome import Spread
from mcctl.bench.load import LoadResult
from mcctl.bench.overload import overload_rows
from mcctl.bench.peak import find_peak, with_overload

NONE = Spread(mean=0.0, p50=0.0, p90=0.0, p99=0.0)


def at(offered_per_s: float, good_per_s: float) -> LoadResult:
    return LoadResult(
        source="s",
        model="m",
        num_requests=100,
        num_answered=50,
        num_rejected=50,
        num_failed=0,
        num_not_sent=0,
        why_failed=None,
        offered_per_s=offered_per_s,
        answered_per_s=good_per_s,
        output_tokens_per_s=0.0,
        ttft_slo_s=2.0,
        tbt_slo_s=0.1,
        goodput=good_per_s / offered_per_s if offered_per_s else 1.0,
        good_per_s=good_per_s,
        ttft_s=NONE,
        tbt_s=NONE,
        prompt_tokens=0,
        reused_fraction=0.0,
        prediction_error=0.0,
        warm_prediction_error=None,
        makespan_s=10.0,
        max_late_s=0.0,
        ttft_percentiles_s=[],
        tbt_percentiles_s=[],
    )


class Cluster:
    """Serves `capacity` a second, and `left` of it where more is offered."""

    def __init__(self, capacity: float, left: float = 1.0) -> None:
        self.capacity, self.left = capacity, left
        self.factors: list[float] = []

    def first(self, offered_per_s: float) -> LoadResult:
        self._first = offered_per_s
        return self._at(offered_per_s)

    def measure(self, factor: float) -> LoadResult:
        self.factors.append(factor)
        return self._at(self._first * factor)

    def _at(self, offered: float) -> LoadResult:
        is_more = offered > self.capacity
        return at(offered, self.capacity * self.left if is_more else offered)


def test_load_is_raised_until_goodput_grows_no_more() -> None:
    cluster = Cluster(2.0)
    peak = find_peak(cluster.first(1.4), cluster.measure, 6)
    assert cluster.factors == [1.25, 1.5625], "1.75 a second, then 2.19"
    assert (peak.load.good_per_s, peak.factor, peak.is_found) == (2.0, 1.5625, True)


def test_where_more_load_is_less_goodput_the_peak_is_before() -> None:
    cluster = Cluster(2.0, left=0.5)
    peak = find_peak(cluster.first(1.4), cluster.measure, 6)
    assert peak.load.good_per_s == pytest.approx(1.75)
    assert peak.factor == 1.25


def test_a_load_that_is_too_much_already_is_not_raised() -> None:
    cluster = Cluster(2.0)
    peak = find_peak(cluster.first(3.0), cluster.measure, 6)
    assert cluster.factors == []
    assert (peak.factor, peak.is_found) == (1.0, True)


def test_steps_end_and_it_is_said_that_goodput_still_grew() -> None:
    cluster = Cluster(100.0)
    first = cluster.first(1.0)
    peak = find_peak(first, cluster.measure, 3)
    assert cluster.factors == [1.25, 1.25**2, 1.25**3]
    assert not peak.is_found
    result = with_overload(first, peak, cluster.measure(3 * peak.factor), 3)
    assert result.overload is not None
    assert "higher --rate" in dict(overload_rows(result.overload))["goodput peaks at"]


def test_without_steps_and_where_all_are_due_at_once_the_first_load_is_taken() -> None:
    cluster = Cluster(2.0)
    for first, steps in ((cluster.first(1.0), 0), (at(0.0, 5.0), 6)):
        assert find_peak(first, cluster.measure, steps).load is first
    assert cluster.factors == []


def test_what_is_left_is_told_as_a_share_of_the_peak() -> None:
    cluster = Cluster(2.0)
    first = cluster.first(1.4)
    peak = find_peak(first, cluster.measure, 6)
    high = msgspec.structs.replace(cluster.measure(peak.factor * 3), good_per_s=1.9)
    overload = with_overload(first, peak, high, 3).overload
    assert overload is not None
    assert overload.goodput_kept == pytest.approx(0.95)
    assert overload.of_peak_load == pytest.approx(3.0)
    rows = dict(overload_rows(overload))
    assert rows["goodput peaks at"] == "2.00/s, where 2.19/s are offered and 91% of them in time"
    assert rows["at 3 times that load"].startswith("6.56/s offered, 100 requests")
    assert rows["goodput then"] == "1.90/s, 95% of the peak"
    none = msgspec.structs.replace(overload, peak_good_per_s=0.0, good_per_s=0.0, goodput_kept=0.0)
    assert dict(overload_rows(none))["goodput then"].startswith(
        "0.00/s, of no peak: nothing was in time"
    )
