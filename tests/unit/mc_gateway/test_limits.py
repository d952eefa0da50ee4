"""Limits of a tenant on a clock that the test turns."""

from hypothesis import given
from hypothesis import strategies as st

from daemons.config.tenants import ModelPrice, Tenant
from daemons.mc_gateway.limits import Limiter

TODAY = ("2026-11-29", 3600.0)


def limiter(**limits: int) -> Limiter:
    return Limiter(Tenant(name="t", **limits), now_s=0.0)


def test_without_limits_everything_passes() -> None:
    free = limiter()
    assert all(free.begin(0.0) is None for _ in range(1000))
    assert free.reserve(10**9, 0.0, TODAY) is None


def test_requests_refill_over_the_minute() -> None:
    two = limiter(requests_per_minute=2)
    assert two.begin(0.0) is None
    assert two.begin(0.0) is None
    refusal = two.begin(0.0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("rate_limit_exceeded", 30)
    assert two.begin(29.0) is not None
    assert two.begin(30.0) is None


def test_requests_at_once_are_counted_until_they_end() -> None:
    one = limiter(max_requests=1)
    assert one.begin(0.0) is None
    refusal = one.begin(0.0)
    assert refusal is not None
    assert refusal.code == "too_many_requests"
    one.end()
    assert one.begin(0.0) is None


def test_what_a_request_did_not_use_is_given_back() -> None:
    hundred = limiter(tokens_per_minute=100)
    assert hundred.reserve(80, 0.0, TODAY) is None
    assert hundred.reserve(80, 0.0, TODAY) is not None, "many at once cannot overdraw"
    hundred.settle(80, 10, TODAY[0])
    assert hundred.reserve(80, 0.0, TODAY) is None


def test_a_request_larger_than_a_minute_passes_when_nothing_else_was_used() -> None:
    hundred = limiter(tokens_per_minute=100)
    assert hundred.reserve(500, 0.0, TODAY) is None
    refusal = hundred.reserve(1, 0.0, TODAY)
    assert refusal is not None
    assert refusal.retry_after_s > 240, "it is paid for"


def test_the_quota_of_a_day_holds_over_a_restart_and_ends_with_the_day() -> None:
    quota = limiter(tokens_per_day=100)
    quota.count_before(TODAY[0], 90)
    refusal = quota.reserve(20, 0.0, TODAY)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("quota_exceeded", 3600)
    assert quota.reserve(10, 0.0, TODAY) is None
    assert quota.reserve(100, 0.0, ("2026-11-30", 86_400.0)) is None


def test_a_changed_limit_holds_at_once() -> None:
    tenant = limiter(requests_per_minute=1)
    assert tenant.begin(0.0) is None
    assert tenant.begin(0.0) is not None
    tenant.change(Tenant(name="t"))
    assert tenant.begin(0.0) is None
    tenant.change(Tenant(name="t", requests_per_minute=1))
    assert tenant.begin(0.0) is None
    assert tenant.begin(0.0) is not None


@given(st.lists(st.tuples(st.integers(1, 200), st.floats(0, 30)), max_size=40))
def test_over_any_time_no_more_than_the_rate_is_admitted(asked: list[tuple[int, float]]) -> None:
    per_minute, now_s, used = 300, 0.0, 0
    bucket = limiter(tokens_per_minute=per_minute)
    for wanted, pause_s in asked:
        now_s += pause_s
        if bucket.reserve(wanted, now_s, TODAY) is None:
            used += wanted
        assert used <= per_minute * (1 + now_s / 60) + 1e-6


def test_a_price_counts_reused_tokens_apart() -> None:
    price = ModelPrice(model="m", prompt=2.0, cached=0.5, completion=10.0)
    cost = price.cost(prompt=1_000_000, cached=600_000, completion=100_000)
    assert abs(cost - (0.4 * 2.0 + 0.6 * 0.5 + 0.1 * 10.0)) < 1e-9
