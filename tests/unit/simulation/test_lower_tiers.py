"""SSDs and an object store below the simulated DRAM: what they give, what it takes, and when it is not worth it."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.simulation.disaggregated import DisaggregatedCluster, DisaggregatedPlan
from daemons.simulation.hardware import DEFAULT, HardwareProfile, StorageRates, find_profile
from daemons.simulation.lower_tiers import MAX_BACKLOG_S, Device
from daemons.simulation.outcome import Objectives, RequestOutcome
from daemons.simulation.simulate import simulate
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest, in_order
from daemons.simulation.workloads import WorkloadPlan, generate

PROFILE = find_profile(DEFAULT)
BLOCK_BYTES = BLOCK_TOKENS * PROFILE.kv.bytes_per_token
SMALL = 40 * BLOCK_TOKENS
"""DRAM of a node in which one prompt of 16,384 tokens makes another one leave."""


def request(arrival_s: float, num_tokens: int, first_block: int = 0) -> TraceRequest:
    blocks = tuple(range(first_block, first_block + num_tokens // BLOCK_TOKENS))
    return TraceRequest(0, arrival_s, num_tokens, 1, blocks)


def run(
    plan: DisaggregatedPlan, requests: list[TraceRequest], profile: HardwareProfile = PROFILE
) -> list[RequestOutcome]:
    return DisaggregatedCluster(plan, profile).run(in_order(requests))


def come_and_go(*more: TraceRequest) -> list[TraceRequest]:
    """A prompt, then others that push it out of a small DRAM, then more."""
    others = [request(60.0 * n, 16_384, first_block=1000 * n) for n in (1, 2, 3)]
    return [request(0, 8192), *others, *more]


def test_what_left_dram_is_read_from_the_ssd() -> None:
    plan = DisaggregatedPlan(1, 1, node_tokens=SMALL, ssd_tokens=1_000_000)
    again = run(plan, come_and_go(request(600, 8192)))[-1]
    without = run(DisaggregatedPlan(1, 1, node_tokens=SMALL), come_and_go(request(600, 8192)))[-1]
    assert (again.cached_tokens, again.ssd_tokens, without.cached_tokens) == (8192, 8192, 0)
    read_s = PROFILE.ssd.latency_s + 16 * BLOCK_BYTES / PROFILE.ssd.read
    expected_s = max(read_s, PROFILE.load_s(8192), PROFILE.prefill_s(8192, 8192))
    assert again.ttft_s == pytest.approx(expected_s)
    assert again.predicted_ttft_s == pytest.approx(expected_s)
    assert again.ttft_s < without.ttft_s


def test_a_queue_hides_the_reading() -> None:
    busy = request(600, 100_000, first_block=50_000)
    profile = msgspec.structs.replace(PROFILE, ssd=StorageRates(3e9, 1e12, 0.0))
    plan = DisaggregatedPlan(1, 1, node_tokens=SMALL, ssd_tokens=1_000_000)
    alone = run(plan, come_and_go(request(600.1, 8192)), profile)[-1]
    queued = run(plan, come_and_go(busy, request(600.1, 8192)), profile)[-1]
    assert alone.ssd_tokens == queued.ssd_tokens == 8192
    assert alone.prefill_s == pytest.approx(16 * BLOCK_BYTES / 3e9)
    assert queued.prefill_s == pytest.approx(
        max(profile.load_s(8192), profile.prefill_s(8192, 8192))
    )
    assert queued.predicted_ttft_s == pytest.approx(queued.ttft_s, rel=1e-6)


def test_what_is_slower_to_read_than_to_compute_is_computed() -> None:
    slow = msgspec.structs.replace(PROFILE, object=StorageRates(1e8, 1e12, 0.05))
    plan = DisaggregatedPlan(1, 1, node_tokens=SMALL, object_tokens=1_000_000)
    fast = run(plan, come_and_go(request(600, 8192)))[-1]
    computed = run(plan, come_and_go(request(600, 8192)), slow)[-1]
    assert (fast.object_tokens, fast.cached_tokens) == (8192, 8192)
    assert computed.cached_tokens == 0
    assert computed.ttft_s == pytest.approx(slow.prefill_s(8192, 0))


def test_the_part_in_dram_is_reused_where_the_rest_is_not_worth_reading() -> None:
    slow = msgspec.structs.replace(PROFILE, ssd=StorageRates(1e8, 1e12, 0.05))
    plan = DisaggregatedPlan(1, 1, node_tokens=SMALL, ssd_tokens=1_000_000)
    # Its first half is computed again before the whole is asked for.
    requests = come_and_go(request(250, 4096), request(600, 8192))
    again = run(plan, requests, slow)[-1]
    assert (again.cached_tokens, again.ssd_tokens) == (4096, 0)


def test_a_block_is_promoted_on_its_second_use_where_dram_is_full() -> None:
    plan = DisaggregatedPlan(1, 1, node_tokens=SMALL, ssd_tokens=1_000_000)
    asked = [request(600 + 10.0 * n, 8192) for n in range(3)]
    outcomes = run(plan, come_and_go(*asked))[-3:]
    assert [outcome.ssd_tokens for outcome in outcomes] == [8192, 8192, 0]
    assert outcomes[-1].cached_tokens == 8192


def test_what_leaves_the_ssd_goes_to_the_object_store() -> None:
    plan = DisaggregatedPlan(1, 1, node_tokens=SMALL, ssd_tokens=2 * SMALL, object_tokens=1_000_000)
    fill = [request(700.0 + 60 * n, 16_384, first_block=10_000 * n) for n in range(1, 5)]
    again = run(plan, come_and_go(*fill, request(2000, 8192)))[-1]
    assert (again.object_tokens, again.cached_tokens) == (8192, 8192)


def test_reads_follow_each_other_and_a_device_that_is_behind_refuses_writes() -> None:
    device = Device(StorageRates(100.0, 10.0, 0.5))
    assert device.read(100, now_s=0) == 1.5
    assert device.read_end_s(100, now_s=1.0) == 3.0
    assert device.read(100, now_s=1.0) == 3.0
    assert device.read_bytes == 200
    assert device.write(int(10 * MAX_BACKLOG_S) + 1, now_s=0)
    assert not device.write(1, now_s=0)
    assert device.write(1, now_s=0.2)


def test_tiers_add_up_and_are_counted() -> None:
    traffic = generate(WorkloadPlan("chats", 400, 4.0, seed=2))
    plans = {
        "dram": DisaggregatedPlan(2, 2, node_tokens=30_000),
        "ssd": DisaggregatedPlan(2, 2, node_tokens=30_000, ssd_tokens=40_000),
        "both": DisaggregatedPlan(
            2, 2, node_tokens=30_000, ssd_tokens=40_000, object_tokens=5_000_000
        ),
    }
    results = {name: simulate(traffic, plan, PROFILE, Objectives()) for name, plan in plans.items()}
    for name, result in results.items():
        assert sum(tier.hit_fraction for tier in result.tiers) == pytest.approx(
            result.reused_fraction
        )
        assert [tier.tier for tier in result.tiers] == ["dram", "ssd", "object"][
            : list(plans).index(name) + 1
        ]
    reused = [result.reused_fraction for result in results.values()]
    assert reused == sorted(reused)
    assert reused[2] > reused[0] + 0.05
    both = results["both"]
    assert all(tier.read_gb > 0 and tier.written_gb > 0 for tier in both.tiers[1:])
    assert all(0 <= hit.dram + hit.ssd + hit.object <= 1 for hit in both.hits)
    assert any(hit.object > 0 for hit in both.hits)


REQUESTS = st.lists(
    st.builds(
        request,
        arrival_s=st.floats(0, 60),
        num_tokens=st.integers(1, 20_000),
        first_block=st.sampled_from([0, 1000, 2000, 3000]),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=30, deadline=None)
@given(REQUESTS, st.integers(1, 40), st.integers(0, 60), st.integers(0, 60))
def test_no_tier_holds_more_than_it_may(
    requests: list[TraceRequest], dram: int, ssd: int, below: int
) -> None:
    plan = DisaggregatedPlan(
        2,
        1,
        node_tokens=dram * BLOCK_TOKENS,
        ssd_tokens=ssd * BLOCK_TOKENS,
        object_tokens=below * BLOCK_TOKENS,
    )
    cluster = DisaggregatedCluster(plan, PROFILE)
    for outcome in cluster.run(in_order(requests)):
        parts = outcome.remote_tokens + outcome.ssd_tokens + outcome.object_tokens
        assert parts <= outcome.cached_tokens
        assert outcome.ttft_s > 0
    cluster.pool.directory.check_invariants()
    for (node, tier), number in cluster.pool.directory.slots.by_place.items():
        limit = {"dram": dram, "ssd": ssd, "object": below}[tier]
        held = cluster.pool.directory.num_blocks_on(node, tier)
        assert held <= limit, (node, tier, number)
