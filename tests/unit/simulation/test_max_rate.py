"""The rate up to which a cluster serves, found from both sides."""

import pytest

from daemons.simulation.max_rate import ENOUGH, max_requests_per_s, rate_curve
from daemons.simulation.trace import TraceRequest

REQUESTS = [TraceRequest(n, n / 2, 100, 10, ()) for n in range(21)]


@pytest.mark.parametrize(("limit", "found"), [(5.3, 5.0), (0.3, 0.28125), (1.0, 1.0)])
def test_the_highest_rate_that_is_served(limit: float, found: float) -> None:
    curve = rate_curve(REQUESTS, lambda factor: 1.0 if factor <= limit else 0.5, least_span_s=1)
    assert max_requests_per_s(curve) == pytest.approx(found * 21 / 10)
    assert [point.requests_per_s for point in curve] == sorted(p.requests_per_s for p in curve)
    assert {point.goodput >= ENOUGH for point in curve} == {True, False}


def test_what_is_served_at_no_rate_or_at_once() -> None:
    assert max_requests_per_s(rate_curve(REQUESTS, lambda _: 0.0, least_span_s=1)) == 0.0
    assert rate_curve(REQUESTS[:1], lambda _: 1.0, least_span_s=1) == []


def test_a_rate_at_which_all_come_in_a_moment_is_not_looked_at() -> None:
    curve = rate_curve(REQUESTS, lambda _: 1.0, least_span_s=4)
    assert [point.requests_per_s for point in curve] == pytest.approx([2.1, 4.2])
