"""Fits find the terms that made the times, and never a negative one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.engine.cost_fit import CostFit, StepFit

positive = st.floats(1e-6, 1e-3)


@given(fixed_s=st.floats(0, 0.1), token_s=positive, context_s=st.floats(1e-9, 1e-7))
def test_prefill_terms_are_found(fixed_s: float, token_s: float, context_s: float) -> None:
    fit = CostFit()
    assert fit.coefficients() == (0.0, 0.0, 0.0)
    samples = [(n, start) for n in (64, 300, 900, 1500) for start in (0, 1000, 4000)]
    for n, start in samples:
        fit.observe(n, start, fixed_s + token_s * n + context_s * n * (start + n / 2))
    found = fit.coefficients()
    for n, start in samples:
        told_s = found[0] + found[1] * n + found[2] * n * (start + n / 2)
        true_s = fixed_s + token_s * n + context_s * n * (start + n / 2)
        assert told_s == pytest.approx(true_s, rel=0.02)


def test_a_machine_that_turns_slower_is_predicted_after_a_few_prompts() -> None:
    fit = CostFit()
    for index in range(60):
        fit.observe(100 + 40 * (index % 7), 0, 0.05 + 1e-3 * (100 + 40 * (index % 7)))
    for n in (300, 120, 200, 180):
        fit.observe(n, 0, 3 * (0.05 + 1e-3 * n))
    fixed_s, token_s, context_s = fit.coefficients()
    told_s = fixed_s + token_s * 250 + context_s * 250 * 125
    assert told_s == pytest.approx(3 * 0.3, rel=0.2)


@given(fixed_s=st.floats(1e-3, 0.1), sequence_s=positive, context_s=st.floats(1e-9, 1e-6))
def test_step_terms_are_found(fixed_s: float, sequence_s: float, context_s: float) -> None:
    fit = StepFit()
    assert fit.coefficients() == (0.0, 0.0, 0.0)
    for batch in range(1, 12):
        context = 137 * batch * (1 + batch % 3)
        fit.observe(batch, context, fixed_s + sequence_s * (batch - 1) + context_s * context)
    told = fit.coefficients()
    assert min(told) >= 0
    told_s = told[0] + told[1] * 7 + told[2] * 5000
    assert told_s == pytest.approx(fixed_s + sequence_s * 7 + context_s * 5000, rel=0.05)
