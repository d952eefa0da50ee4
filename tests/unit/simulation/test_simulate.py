"""Simulations whose outcome is known in closed form, and what must hold in all."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.conductor.pipeline import pipelined_s
from daemons.simulation.capacity import hit_fraction
from daemons.simulation.coupled import CoupledCluster, CoupledPlan
from daemons.simulation.disaggregated import POLICY_NAMES, DisaggregatedCluster, DisaggregatedPlan
from daemons.simulation.hardware import DEFAULT, find_profile
from daemons.simulation.outcome import Objectives, RequestOutcome, slow_mean
from daemons.simulation.simulate import ClusterPlan, simulate
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest, in_order
from daemons.simulation.workloads import WORKLOADS, WorkloadPlan, generate

PROFILE = find_profile(DEFAULT)
PLANS: list[ClusterPlan] = [
    DisaggregatedPlan(2, 1),
    DisaggregatedPlan(1, 2, "kvcache-centric"),
    DisaggregatedPlan(2, 2, "random", node_tokens=20 * BLOCK_TOKENS),
    DisaggregatedPlan(3, 1, max_pipeline=3),
    CoupledPlan(2),
    CoupledPlan(2, has_prefix_cache=True),
    CoupledPlan(2, "chunked", has_prefix_cache=True),
    CoupledPlan(2, "serial"),
]


def request(
    arrival_s: float, num_tokens: int, output_tokens: int = 1, first_block: int = 0
) -> TraceRequest:
    blocks = tuple(range(first_block, first_block + num_tokens // BLOCK_TOKENS))
    return TraceRequest(0, arrival_s, num_tokens, output_tokens, blocks)


def outcomes_of(plan: ClusterPlan, requests: list[TraceRequest]) -> list[RequestOutcome]:
    cluster = (
        CoupledCluster(plan, PROFILE)
        if isinstance(plan, CoupledPlan)
        else DisaggregatedCluster(plan, PROFILE)
    )
    return cluster.run(in_order(requests))


def test_one_request_alone_takes_what_the_profile_says() -> None:
    (alone,) = outcomes_of(DisaggregatedPlan(1, 1), [request(0, 4096, output_tokens=101)])
    assert alone.ttft_s == pytest.approx(PROFILE.prefill_s(4096, 0))
    first_gap_s = alone.gaps[0][0]
    step_s = PROFILE.step_s(1, 4096 + 50)
    last_layer_s = PROFILE.network_s(4096) / PROFILE.kv.num_layers
    assert first_gap_s == pytest.approx(step_s + last_layer_s, rel=1e-3)
    decode_s = alone.finished_s - alone.ttft_s
    assert decode_s == pytest.approx(100 * step_s + last_layer_s, rel=1e-3)


def test_the_second_waits_for_the_first() -> None:
    far = 10_000
    one, two = outcomes_of(
        DisaggregatedPlan(1, 1), [request(0, 4096), request(0.1, 4096, first_block=far)]
    )
    prefill_s = PROFILE.prefill_s(4096, 0)
    assert one.ttft_s == pytest.approx(prefill_s)
    assert two.ttft_s == pytest.approx(2 * prefill_s - 0.1)
    assert two.predicted_ttft_s == pytest.approx(two.ttft_s, rel=0.01)


def test_a_prefix_is_reused_once_it_is_there() -> None:
    early, again = outcomes_of(DisaggregatedPlan(1, 1), [request(0, 8192), request(30, 8192)])
    assert (early.cached_tokens, again.cached_tokens) == (0, 8192)
    load_s = PROFILE.load_s(8192)
    assert again.ttft_s == pytest.approx(max(load_s, PROFILE.prefill_s(8192, 8192)))


def test_a_prefix_of_a_busy_node_is_pulled_to_another() -> None:
    """The first node is kept busy by a long prompt when the prefix it holds is asked for."""
    long = request(30, 100_000, first_block=50_000)
    plans = [DisaggregatedPlan(2, 1), DisaggregatedPlan(2, 1, may_pull=False)]
    pulling, local = (
        outcomes_of(plan, [request(0, 8192), long, request(31, 8192)]) for plan in plans
    )
    holder = pulling[0].prefill
    if pulling[1].prefill == holder:
        assert pulling[2].remote_tokens == 8192
        assert pulling[2].ttft_s < PROFILE.prefill_s(8192, 0)
    assert local[2].remote_tokens == 0


def test_a_group_prefills_a_long_prompt_and_holds_up_who_comes_after() -> None:
    long, short = request(0, 100_000), request(0.1, 4096, first_block=50_000)
    plan = DisaggregatedPlan(2, 1, max_pipeline=2)
    grouped, after = outcomes_of(plan, [long, short])
    alone, beside = outcomes_of(DisaggregatedPlan(2, 1), [long, short])
    assert (grouped.num_stages, alone.num_stages) == (2, 1)
    assert grouped.ttft_s == pytest.approx(
        pipelined_s(PROFILE.cost_model(), 100_000, 0, num_stages=2, chunk_tokens=4096)
    )
    assert grouped.predicted_ttft_s == pytest.approx(grouped.ttft_s)
    assert grouped.ttft_s < 0.6 * alone.ttft_s
    assert after.ttft_s == pytest.approx(grouped.ttft_s - 0.1 + PROFILE.prefill_s(4096, 0))
    assert beside.ttft_s == pytest.approx(PROFILE.prefill_s(4096, 0))
    again, *_ = outcomes_of(plan, [replace(long, arrival_s=60.0), long])[1:]
    assert again.cached_tokens == 100_000 // BLOCK_TOKENS * BLOCK_TOKENS


def test_a_prompt_that_shares_a_prefix_with_one_under_way_reuses_it() -> None:
    both = [request(0, 40_960), request(3, 40_960 + 512)]
    first, second = outcomes_of(DisaggregatedPlan(2, 1), both)
    assert second.prefill == first.prefill
    assert second.cached_tokens == 40_960
    assert second.ttft_s < first.ttft_s
    assert second.ttft_s == pytest.approx(second.predicted_ttft_s, rel=0.05)


def test_whole_prompts_stall_decoding_and_chunks_do_not() -> None:
    talk, prompt = request(0, 512, output_tokens=200), request(2, 32_768, first_block=900)
    stalled, _ = outcomes_of(CoupledPlan(1), [talk, prompt])
    chunked, _ = outcomes_of(CoupledPlan(1, "chunked"), [talk, prompt])
    apart, _ = outcomes_of(DisaggregatedPlan(1, 1), [talk, prompt])
    longest = [max(gap for gap, _ in outcome.gaps) for outcome in (stalled, chunked, apart)]
    assert longest[0] > PROFILE.prefill_s(32_768, 0)
    assert longest[1] < 0.2
    assert longest[2] < 0.06


def test_who_would_wait_too_long_is_turned_away_and_costs_nothing() -> None:
    plan = DisaggregatedPlan(1, 1, max_queue_s=1.0)
    many = [request(0, 16_384, 10, first_block=100 * number) for number in range(6)]
    outcomes = outcomes_of(plan, many)
    rejected = [outcome for outcome in outcomes if outcome.why_rejected]
    assert rejected
    assert all(outcome.prefill_s == 0 and not outcome.gaps for outcome in rejected)
    result = simulate(in_order(many), plan, PROFILE, Objectives())
    assert result.num_rejected == len(rejected)
    assert result.goodput == pytest.approx(1 - len(rejected) / len(many))


@pytest.mark.parametrize("mode", ["current-load", "predicted-load", "objectives"])
def test_early_rejection_keeps_the_objective_of_all_others(mode: str) -> None:
    traffic = generate(WorkloadPlan("unrelated", 400, 4.0))
    open_to_all, strict = (
        simulate(
            traffic,
            DisaggregatedPlan(2, 2, admission=name, ttft_slo_s=10.0, tbt_slo_s=0.1),
            PROFILE,
            Objectives(10.0),
        )
        for name in ("none", mode)
    )
    assert open_to_all.num_rejected == 0 < strict.num_rejected
    assert strict.ttft_s.p99 < 11.0 < open_to_all.ttft_s.p50
    assert strict.goodput > 2 * open_to_all.goodput


def test_at_three_times_the_load_as_much_is_served_well_as_at_the_best() -> None:
    """Decode is the bottleneck: without shedding in time, each newcomer would slow down all others."""
    objectives = Objectives(10.0, 0.05)
    served = {}
    for rate in (12.0, 36.0):
        traffic = generate(WorkloadPlan("batch", 800, rate))
        for mode in ("predicted-load", "objectives"):
            plan = DisaggregatedPlan(4, 1, admission=mode, ttft_slo_s=10.0, tbt_slo_s=0.05)
            result = simulate(traffic, plan, PROFILE, objectives)
            served[mode, rate] = result.goodput * result.num_requests / traffic[-1].arrival_s
    assert served["objectives", 36.0] > 0.85 * served["objectives", 12.0]
    assert served["objectives", 36.0] > 3 * served["predicted-load", 36.0]


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_the_same_inputs_give_the_same_result(policy: str) -> None:
    traffic = generate(WorkloadPlan("chats", 200, 3.0, seed=4))
    one, two = (
        simulate(traffic, DisaggregatedPlan(3, 2, policy), PROFILE, Objectives()) for _ in range(2)
    )
    assert one == two
    assert one.reused_fraction > 0.5


@pytest.mark.parametrize("kind", WORKLOADS)
def test_made_up_traffic_comes_at_its_rate_and_depends_on_its_seed_alone(kind: str) -> None:
    plan = WorkloadPlan(kind, 1500, 4.0, seed=1)
    made = generate(plan)
    assert made == generate(plan)
    assert made != generate(WorkloadPlan(kind, 1500, 4.0, seed=2))
    assert len(made) == 1500
    assert len(made) / made[-1].arrival_s == pytest.approx(4.0, rel=0.35)
    for one in made:
        assert len(one.blocks) == one.input_tokens // BLOCK_TOKENS


REQUESTS = st.lists(
    st.builds(
        request,
        arrival_s=st.floats(0, 60),
        num_tokens=st.integers(1, 20_000),
        output_tokens=st.integers(1, 400),
        first_block=st.sampled_from([0, 1000, 2000, 3000]),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.sampled_from(PLANS))
def test_every_request_ends_with_all_its_tokens(
    requests: list[TraceRequest], plan: ClusterPlan
) -> None:
    for outcome in outcomes_of(plan, requests):
        assert not outcome.why_rejected
        assert sum(count for _, count in outcome.gaps) == outcome.output_tokens - 1
        assert all(gap_s > 0 and count > 0 for gap_s, count in outcome.gaps)
        assert 0 <= outcome.remote_tokens <= outcome.cached_tokens <= outcome.input_tokens
        alone_s = PROFILE.chunk_s(
            outcome.cached_tokens, outcome.input_tokens - outcome.cached_tokens
        )
        assert outcome.ttft_s >= 0.9 * alone_s / outcome.num_stages
        spoken_s = sum(gap_s * count for gap_s, count in outcome.gaps)
        end_s = outcome.arrival_s + outcome.ttft_s + spoken_s
        assert outcome.finished_s == pytest.approx(end_s, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.integers(1, 40))
def test_the_pool_never_holds_more_than_it_may(requests: list[TraceRequest], blocks: int) -> None:
    plan = DisaggregatedPlan(2, 1, node_tokens=blocks * BLOCK_TOKENS)
    cluster = DisaggregatedCluster(plan, PROFILE)
    cluster.run(in_order(requests))
    directory = cluster.pool.directory
    directory.check_invariants()
    assert all(directory.num_blocks_on(node) <= blocks for node, _ in directory.slots.by_place)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(1, 60))
def test_hits_of_a_cache_grow_with_it_up_to_those_of_one_without_end(
    requests: list[TraceRequest], blocks: int
) -> None:
    ordered = in_order(requests)
    seen: set[int] = set()
    num_hits = 0
    for one in ordered:
        # Blocks are numbered in a row here, so those seen before are the first ones.
        num_hits += sum(block in seen for block in one.blocks)
        seen.update(one.blocks)
    limit = num_hits * BLOCK_TOKENS / sum(one.input_tokens for one in ordered)
    assert hit_fraction(ordered, 0) == pytest.approx(limit)
    small, large = (hit_fraction(ordered, size * BLOCK_TOKENS) for size in (blocks, 2 * blocks))
    assert small <= large <= limit + 1e-12


def test_the_longest_tenth_of_gaps() -> None:
    assert slow_mean([]) == 0.0
    assert slow_mean([(0.05, 9), (1.0, 1)]) == 1.0
    assert slow_mean([(0.05, 18), (1.0, 1), (0.5, 1)]) == pytest.approx(0.75)
    assert slow_mean([(0.05, 100)]) == pytest.approx(0.05)


def test_a_prefix_that_many_read_is_copied_and_dropped_when_it_is_cool() -> None:
    """Without pulls only nodes that have the prefix reuse it: a copy spreads its readers."""
    crowd = [request(60 + 0.2 * number, 8192 + 512) for number in range(40)]
    quiet = [request(300 + 70 * number, 512, first_block=90_000) for number in range(3)]
    requests = in_order([request(0, 8192), *crowd, *quiet])
    plan = DisaggregatedPlan(4, 2, may_pull=False, hot_uses=5)
    cluster = DisaggregatedCluster(plan, PROFILE)
    with_copies = cluster.run(requests)
    without = outcomes_of(replace(plan, hot_uses=0), requests)
    assert cluster.hot.num_made > 0
    readers = [
        {o.prefill for o in outcomes[1:41] if o.cached_tokens >= 8192}
        for outcomes in (with_copies, without)
    ]
    assert len(readers[0]) == 3
    assert len(readers[1]) < 3
    first = cluster.pool.hashes(range(1))[0]
    assert len(cluster.pool.holders(first)) == 1
