"""Predictions grow with work and shrink with reuse; what was not measured has a default."""

from hypothesis import given
from hypothesis import strategies as st

from daemons.conductor.latency import BATCH_STEP_FRACTION, CostModel, measured
from daemons.protocol.node import InstanceLoad


@given(num_tokens=st.integers(1, 100_000), cached=st.integers(0, 100_000))
def test_reuse_never_lengthens_a_prefill(num_tokens: int, cached: int) -> None:
    cost = CostModel()
    assert 0 < cost.prefill_s(num_tokens, cached) <= cost.prefill_s(num_tokens, 0)
    assert cost.prefill_s(num_tokens + 1, cached) >= cost.prefill_s(num_tokens, cached)


def test_prefill_is_the_documented_fit() -> None:
    cost = CostModel(fixed_s=1.0, token_s=0.1, token_context_s=0.01)
    assert cost.prefill_s(30, 10) == 1.0 + 0.1 * 20 + 0.01 * 20 * (10 + 10)


def test_what_was_measured_replaces_the_default_term_by_term() -> None:
    assert measured(None) == CostModel()
    assert measured(InstanceLoad()) == CostModel()
    load = InstanceLoad(prefill_token_s=0.5, decode_step_s=0.2, prefill_fixed_s=-1.0)
    assert measured(load) == CostModel(
        fixed_s=0.0,
        token_s=0.5,
        token_context_s=0.0,
        step_s=0.2,
        sequence_s=0.2 * BATCH_STEP_FRACTION,
        is_guess=False,
    )
    assert measured(InstanceLoad(decode_step_s=0.2)).is_guess
    assert not measured(InstanceLoad(), measured(load)).is_guess
