"""Sizes of memory that a trace asks for, and which of them is bought."""

import msgspec
import pytest

from daemons.simulation.capacity import hit_fraction, num_distinct_tokens
from daemons.simulation.disaggregated import DisaggregatedPlan
from daemons.simulation.hardware import DEFAULT, StorageRates, find_profile
from daemons.simulation.outcome import Objectives, Spread
from daemons.simulation.simulate import simulate
from daemons.simulation.sizing import WORTH, MemoryChoice, best_choice, sizes_to_try
from daemons.simulation.workloads import WorkloadPlan, generate

PROFILE = find_profile(DEFAULT)
TRAFFIC = generate(WorkloadPlan("documents", 500, 2.0, seed=3))


def test_enough_memory_finds_nearly_all_and_not_much_more_is_bought() -> None:
    sizes = {each.name: each for each in sizes_to_try(TRAFFIC, PROFILE, 4)}
    limit = hit_fraction(TRAFFIC, 0)
    enough = 4 * sizes["all in DRAM"].dram_tokens
    assert hit_fraction(TRAFFIC, enough) >= WORTH * limit
    assert hit_fraction(TRAFFIC, enough - num_distinct_tokens(TRAFFIC) // 20) < WORTH * limit
    little = sizes["little DRAM, SSD below"]
    assert little.dram_tokens < sizes["all in DRAM"].dram_tokens == little.ssd_tokens
    assert little.price < sizes["all in DRAM"].price
    assert sizes["the profile's DRAM"].dram_tokens == PROFILE.kv.dram_tokens


def test_slow_drives_need_more_dram_above_them_and_too_slow_ones_are_not_bought() -> None:
    def dram_with(read: float, write: float) -> list[int]:
        profile = msgspec.structs.replace(PROFILE, ssd=StorageRates(read, write, 1e-4))
        return [s.dram_tokens for s in sizes_to_try(TRAFFIC, profile, 4) if s.ssd_tokens]

    (fast,), (slow,) = dram_with(12e9, 8e9), dram_with(3e8, 8e9)
    assert fast < slow
    assert dram_with(12e9, 1e7) == []


def test_no_ssd_is_tried_below_a_dram_that_needs_all_of_it_anyway() -> None:
    unrelated = generate(WorkloadPlan("unrelated", 200, 2.0))
    assert [size.ssd_tokens for size in sizes_to_try(unrelated, PROFILE, 4)] == [0, 0, 0]


def choice(name: str, price: float, goodput: float, ttft_s: float) -> MemoryChoice:
    run = simulate(TRAFFIC[:2], DisaggregatedPlan(1, 1), PROFILE, Objectives())
    spread = Spread(mean=ttft_s, p50=ttft_s, p90=ttft_s, p99=ttft_s)
    return MemoryChoice(
        name=name,
        dram_tokens=1,
        ssd_tokens=0,
        price=price,
        run=msgspec.structs.replace(run, goodput=goodput, ttft_s=spread),
    )


@pytest.mark.parametrize(
    ("goodput", "ttft_s", "bought"),
    [(1.0, 1.05, "cheap"), (1.0, 1.2, "dear"), (0.9, 1.0, "dear"), (0.996, 1.0, "cheap")],
)
def test_the_cheapest_of_those_about_as_good_is_bought(
    goodput: float, ttft_s: float, bought: str
) -> None:
    choices = [choice("dear", 10.0, 1.0, 1.0), choice("cheap", 1.0, goodput, ttft_s)]
    assert best_choice(choices).name == bought
