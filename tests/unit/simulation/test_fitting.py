"""The fit finds the times that rows were made with, and says what rows are missing."""

import pytest

from daemons.core.errors import ConfigError
from daemons.simulation.fitting import PrefillSample, StepSample, fit_decode, fit_prefill
from daemons.simulation.hardware import DecodeTimes, PrefillTimes

TRUE = PrefillTimes(fixed_s=0.05, token_s=1e-3, token_context_s=4e-8)


def of(num_tokens: int, num_cached: int = 0, times: PrefillTimes = TRUE) -> PrefillSample:
    new = num_tokens - num_cached
    elapsed_s = times.fixed_s + new * times.token_s
    elapsed_s += new * (num_cached + new / 2) * times.token_context_s
    return PrefillSample(num_tokens, num_cached, elapsed_s)


@pytest.mark.parametrize(
    "samples",
    [
        [of(576), of(1088), of(4160)],
        [of(841), of(841, 768), of(2112), of(2112, 2048)],
        [of(n, n // 256 * 256) for n in (576, 2112)] + [of(n) for n in (576, 2112)],
    ],
    ids=["cold alone", "as --quick", "reused first"],
)
def test_prefill_times_are_found_again(samples: list[PrefillSample]) -> None:
    found = fit_prefill(samples)
    assert found.fixed_s == pytest.approx(TRUE.fixed_s, rel=1e-3)
    assert found.token_s == pytest.approx(TRUE.token_s, rel=1e-3)
    assert found.token_context_s == pytest.approx(TRUE.token_context_s, rel=1e-2)
    for sample in samples:
        assert sample.fitted_s(found) == pytest.approx(sample.elapsed_s, rel=1e-4)


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([], "no prompt"),
        ([of(576), of(576, 512)], "prompts of 576 tokens"),
        ([of(576), of(1088)], "prompts of 576, 1088 tokens"),
        ([of(576)] * 9 + [of(1088)] * 9, "--prefix 512 --prefix 2048"),
    ],
)
def test_rows_that_leave_a_term_open_are_refused(samples: list[PrefillSample], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        fit_prefill(samples)
    assert said in error.value.message


def test_times_that_do_not_grow_are_noise() -> None:
    with pytest.raises(ConfigError, match="noise"):
        fit_prefill([PrefillSample(n, 0, 1.0 / n) for n in (100, 200, 400, 800)])


def test_no_term_is_negative_where_noise_would_have_it_so() -> None:
    shallow = [PrefillSample(n, 0, 0.05 + 1e-3 * n - 1e-8 * n * n / 2) for n in (512, 1024, 4096)]
    found = fit_prefill(shallow)
    assert found.token_context_s == 0
    assert found.token_s == pytest.approx(1e-3, rel=0.05)


def test_a_step_and_what_one_more_sequence_costs_are_found_again() -> None:
    samples = [StepSample(size, 0.03 + 0.002 * (size - 1)) for size in (1, 4, 8)]
    found = fit_decode(samples)
    assert found.step_s == pytest.approx(0.03, rel=1e-4)
    assert found.sequence_s == pytest.approx(0.002, rel=1e-4)
    assert [sample.fitted_s(found) for sample in samples] == pytest.approx(
        [sample.elapsed_s for sample in samples], rel=1e-4
    )
    assert found.context_token_s == 0


@pytest.mark.parametrize("samples", [[], [StepSample(4, 0.04)], [StepSample(4, 0.04)] * 3])
def test_one_batch_size_does_not_say_what_a_sequence_costs(samples: list[StepSample]) -> None:
    with pytest.raises(ConfigError, match="1, 4 and 8"):
        fit_decode(samples)


def test_errors_count_by_what_was_measured() -> None:
    """Twice as long at the shortest prompt counts as much as at the longest."""
    lengths = (100, 1000, 10_000)
    exact = [of(n, times=PrefillTimes(0.0, 1e-3, 0.0)) for n in lengths]
    slow = PrefillSample(100, 0, 0.2)
    found = fit_prefill([*exact, slow])
    assert found.fixed_s > 0.02, "the short ones are between 0.1 and 0.2 s"
    assert exact[-1].fitted_s(found) == pytest.approx(10, rel=0.02)
    assert isinstance(fit_decode([StepSample(1, 1.0), StepSample(2, 1.0)]), DecodeTimes)
