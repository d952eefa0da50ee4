"""Prefixes that stay in the KV arena of a simulated prefill node, by the live code of slots and of what is kept."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.core.ids import BlockHash, NodeId
from daemons.simulation.device_tier import DeviceArena
from daemons.simulation.disaggregated import DisaggregatedCluster, DisaggregatedPlan
from daemons.simulation.hardware import DEFAULT, find_profile
from daemons.simulation.outcome import Objectives, RequestOutcome
from daemons.simulation.pool import block_hash
from daemons.simulation.simulate import simulate
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest, in_order
from daemons.simulation.workloads import WorkloadPlan, generate
from daemons.store.directory.device_index import DeviceIndex

PROFILE = find_profile(DEFAULT)
NODE = NodeId("prefill-0")


def request(arrival_s: float, num_blocks: int, first_block: int = 0) -> TraceRequest:
    """Whole blocks and a rest, so that all blocks can be reused."""
    blocks = tuple(range(first_block, first_block + num_blocks))
    return TraceRequest(0, arrival_s, num_blocks * BLOCK_TOKENS + 100, 1, blocks)


def run(plan: DisaggregatedPlan, *requests: TraceRequest) -> list[RequestOutcome]:
    return DisaggregatedCluster(plan, PROFILE).run(in_order(requests))


def test_what_the_devices_still_hold_needs_no_load() -> None:
    first, again = request(0, 100), request(60, 100)
    *_, kept = run(DisaggregatedPlan(1, 1, device_tokens=100_000), first, again)
    *_, loaded = run(DisaggregatedPlan(1, 1), first, again)
    assert (kept.cached_tokens, kept.device_tokens) == (51_200, 51_200)
    assert (loaded.cached_tokens, loaded.device_tokens) == (51_200, 0)
    assert kept.prefill_s == PROFILE.prefill_s(51_300, 51_200)
    assert loaded.prefill_s == PROFILE.load_s(51_200)
    assert kept.predicted_ttft_s == kept.prefill_s
    assert loaded.predicted_ttft_s == pytest.approx(loaded.prefill_s)


def test_the_prefix_used_longest_ago_gives_way_and_is_loaded_from_dram() -> None:
    plan = DisaggregatedPlan(1, 1, device_tokens=60_000)
    first, second = request(0, 80), request(60, 80, first_block=1000)
    *_, here, gone = run(plan, first, second, request(120, 80, first_block=1000), request(180, 80))
    assert here.device_tokens == here.cached_tokens == 80 * BLOCK_TOKENS
    assert (gone.device_tokens, gone.cached_tokens) == (0, 80 * BLOCK_TOKENS)


def test_the_conductor_prefers_the_node_whose_devices_hold_the_prefix() -> None:
    plan = DisaggregatedPlan(4, 1, device_tokens=1_000_000)
    first, *others = run(plan, *(request(60.0 * n, 50) for n in range(5)))
    assert [other.prefill for other in others] == [first.prefill] * 4
    assert all(other.device_tokens == 50 * BLOCK_TOKENS for other in others)


def test_tiers_add_up_with_the_devices_among_them() -> None:
    requests = generate(WorkloadPlan("agents", 200, 3.0))
    result = simulate(
        requests, DisaggregatedPlan(2, 1, device_tokens=200_000), PROFILE, Objectives()
    )
    hits = {tier.tier: tier.hit_fraction for tier in result.tiers}
    assert hits["device"] > 0.3
    assert abs(sum(hits.values()) - result.reused_fraction) < 1e-9
    assert all(0 <= hit.device <= 1 for hit in result.hits)


def test_what_came_from_the_ssd_in_vain_counts_for_the_devices_alone() -> None:
    """Two that ask for one prefix at a time both fetch it; the second finds it in the first one's slot."""
    others = [request(60.0 * n, 32, first_block=1000 * n) for n in (1, 2, 3)]
    plan = DisaggregatedPlan(
        1, 1, node_tokens=40 * BLOCK_TOKENS, ssd_tokens=1_000_000, device_tokens=20_000
    )
    first, second = run(plan, request(0, 16), *others, request(600, 16), request(600, 16))[-2:]
    whole = 16 * BLOCK_TOKENS
    assert (first.cached_tokens, first.ssd_tokens, first.device_tokens) == (whole, whole, 0)
    assert (second.cached_tokens, second.ssd_tokens, second.device_tokens) == (whole, 0, whole)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 511)), max_size=30))
@settings(max_examples=40, deadline=None)
def test_the_index_says_what_the_arena_holds(prompts: list[tuple[int, int, int]]) -> None:
    index = DeviceIndex()
    arena = DeviceArena(NODE, 16_384, index)
    for number, (chain, num_blocks, rest) in enumerate(prompts):
        hashes = [block_hash(1000 * chain + block) for block in range(num_blocks)]
        expected = index.leading(hashes).get(NODE, 0)
        used = arena.start(hashes, num_blocks * BLOCK_TOKENS + rest)
        assert (used is None) == (num_blocks * BLOCK_TOKENS + rest > 16_384)
        if used is not None:
            assert used.num_held <= expected
            arena.computed(used, hashes, now_s=float(number))
            arena.release(used)
            assert index.leading(hashes).get(NODE, 0) == num_blocks
        arena.slots.check_invariants()
        index.check_invariants()
        assert sorted(arena.slots.hashes()) == sorted(_held(index))


def _held(index: DeviceIndex) -> list[BlockHash]:
    every = [block_hash(1000 * chain + block) for chain in range(4) for block in range(40)]
    return [each for each in every if index.nodes_of(each)]
