from dataclasses import dataclass

import pytest
import torch

from daemons.engine.decode.sampler import Sampler, sample_drafted, uniform


@dataclass(frozen=True)
class Params:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = 7


LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0, -1.0])


def counts(params: Params, draws: int = 4000) -> torch.Tensor:
    sampler = Sampler(params)
    picked = [sampler.sample(LOGITS, position) for position in range(draws)]
    return torch.bincount(torch.tensor(picked), minlength=len(LOGITS)) / draws


def test_temperature_zero_takes_the_best_and_the_lowest_id_of_equals() -> None:
    greedy = Sampler(Params(temperature=0))
    assert greedy.sample(LOGITS, 0) == 1
    assert greedy.sample(torch.tensor([0.0, 5.0, 5.0, 5.0]), 0) == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_distribution(temperature: float) -> None:
    expected = (LOGITS / temperature).softmax(dim=-1)
    torch.testing.assert_close(counts(Params(temperature=temperature)), expected, atol=0.03, rtol=0)


def test_top_k_keeps_the_k_best() -> None:
    seen = counts(Params(temperature=3.0, top_k=2))
    assert (seen > 0).tolist() == [False, True, True, False, False]
    assert Sampler(Params(top_k=1)).is_greedy


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.01, {1}), (0.7, {1, 2}), (0.95, {0, 1, 2}), (0.999, {0, 1, 2, 3, 4})]
)
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, kept: set[int]) -> None:
    seen = counts(Params(top_p=top_p))
    assert set(seen.nonzero().flatten().tolist()) <= kept
    assert len(kept) == 5 or set(seen.nonzero().flatten().tolist()) == kept


def test_flat_distribution_needs_more_than_the_first_guess() -> None:
    sampler = Sampler(Params(top_p=0.9))
    flat = torch.zeros(5000)
    assert len({sampler.sample(flat, position) for position in range(600)}) > 400


def test_choice_depends_on_seed_and_position_only() -> None:
    flat = torch.zeros(1000)
    one, again = Sampler(Params()), Sampler(Params())
    first = [one.sample(flat, position) for position in range(20)]
    assert [again.sample(flat, position) for position in reversed(range(20))] == first[::-1]
    other = Sampler(Params(seed=8))
    assert [other.sample(flat, position) for position in range(20)] != first


def test_no_seed_draws_one() -> None:
    flat = torch.zeros(10**6)
    assert Sampler(Params(seed=None)).sample(flat, 0) != Sampler(Params(seed=None)).sample(flat, 0)


def test_batch_equals_row_by_row() -> None:
    samplers = [Sampler(Params(seed=seed, temperature=seed % 3)) for seed in range(9)]
    logits = torch.randn(9, 300, generator=torch.Generator().manual_seed(0))
    positions = list(range(40, 49))
    alone = [(s.sample(row, at),) for s, row, at in zip(samplers, logits, positions, strict=True)]
    assert sample_drafted(samplers, logits, [(at, ()) for at in positions]) == alone


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_draft_is_taken_up_to_where_it_errs(temperature: float) -> None:
    sampler = Sampler(Params(seed=5, temperature=temperature))
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1))
    said = tuple(sampler.sample(row, 40 + at) for at, row in enumerate(logits))
    for num_right in range(4):
        draft = [*said[:num_right], *[-1] * (3 - num_right)]
        made = sample_drafted([sampler] * 2, torch.cat((logits, logits)), [(40, draft)] * 2)
        assert made == [said[: num_right + 1]] * 2


def test_counter_is_uniform() -> None:
    points = [uniform(-5, position) for position in range(2000)]
    assert all(0 <= point < 1 for point in points)
    assert abs(sum(points) / len(points) - 0.5) < 0.03
