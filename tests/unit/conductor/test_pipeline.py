"""Groups of prefill instances: what they take, when they pay, and what is promised for them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.conductor.conductor import Conductor
from daemons.conductor.instance_table import InstanceDescription, InstanceRole
from daemons.conductor.latency import CostModel
from daemons.conductor.pipeline import PipelineLimits, Prompt, choose_pipeline, pipelined_s
from daemons.conductor.prefill_placement import Tuning
from daemons.conductor.view import PlacementRequest
from daemons.core.ids import HostId, NodeId, RequestId

COST = CostModel(fixed_s=0.05, token_s=1e-4, token_context_s=1.4e-9, load_token_s=1e-6)
LIMITS = PipelineLimits(4, 4096)


def prompt(num_tokens: int, *, cached: int = 0, queue_s: float = 0.0) -> Prompt:
    alone_s = COST.prefill_s(num_tokens, cached)
    return Prompt(num_tokens, cached, COST, queue_s, 0.0, alone_s)


@given(
    num_chunks=st.integers(1, 40),
    num_stages=st.integers(1, 8),
    tokens=st.integers(64, 4096),
    cached=st.integers(0, 50_000),
)
def test_the_closed_form_is_what_a_pipeline_of_chunks_takes(
    num_chunks: int, num_stages: int, tokens: int, cached: int
) -> None:
    """Chunk by chunk, stage by stage: each begins when the stage is free and the stage before is done with it."""
    free_s = [0.0] * num_stages
    for chunk in range(num_chunks):
        start = cached + chunk * tokens
        chunk_s = COST.prefill_s(start + tokens, start) - COST.fixed_s
        done_s = 0.0
        for stage in range(num_stages):
            done_s = max(done_s, free_s[stage]) + chunk_s / num_stages
            free_s[stage] = done_s
    taken_s = pipelined_s(
        COST, cached + num_chunks * tokens, cached, num_stages=num_stages, chunk_tokens=tokens
    )
    assert taken_s == pytest.approx(COST.fixed_s + free_s[-1], rel=1e-9)


def test_one_stage_is_the_plain_prefill() -> None:
    alone_s = COST.prefill_s(50_000, 9_000)
    assert pipelined_s(COST, 50_000, 9_000, num_stages=1, chunk_tokens=4096) == pytest.approx(
        alone_s
    )


def test_a_long_prompt_gets_idle_helpers_and_a_short_or_cached_one_none() -> None:
    group = choose_pipeline(prompt(100_000), [0.0] * 7, LIMITS)
    assert group is not None
    assert group.others == (0, 1, 2)
    assert group.work_s < 0.4 * COST.prefill_s(100_000, 0)
    assert choose_pipeline(prompt(8_000), [0.0] * 7, LIMITS) is None
    assert choose_pipeline(prompt(100_000, cached=95_000), [0.0] * 7, LIMITS) is None
    assert choose_pipeline(prompt(100_000), [0.0] * 7, PipelineLimits()) is None
    assert choose_pipeline(prompt(100_000), [], LIMITS) is None


def test_helpers_with_a_queue_are_left_to_others() -> None:
    one_idle = choose_pipeline(prompt(100_000), [9.0, 0.0, 9.0], LIMITS)
    assert one_idle is not None
    assert one_idle.others == (1,)
    assert choose_pipeline(prompt(30_000), [9.0] * 3, LIMITS) is None


@given(
    num_tokens=st.integers(1, 130_000),
    queue_s=st.floats(0, 20),
    queues_s=st.lists(st.floats(0, 20), max_size=6),
)
def test_a_group_is_always_faster_and_saves_more_than_it_costs(
    num_tokens: int, queue_s: float, queues_s: list[float]
) -> None:
    asked = prompt(num_tokens, queue_s=queue_s)
    group = choose_pipeline(asked, queues_s, LIMITS)
    if group is None:
        return
    saved_s = queue_s + asked.alone_s - group.total_s
    num_stages = 1 + len(group.others)
    assert 2 <= num_stages <= LIMITS.max_stages
    assert len(set(group.others)) == len(group.others)
    assert saved_s > num_stages * group.work_s - asked.alone_s >= 0
    assert group.queue_s >= max(queues_s[other] for other in group.others)


def conductor(pipeline: str = "rack", max_stages: int = 4) -> Conductor:
    made = Conductor(Tuning(pipeline=replace(LIMITS, max_stages=max_stages)))
    roles: list[tuple[str, InstanceRole]] = [(f"p{n}", "prefill") for n in range(4)]
    for name, role in [*roles, ("d", "decode")]:
        described = InstanceDescription(
            node=NodeId(name),
            role=role,
            host_id=HostId(name),
            model="m",
            namespace=b"",
            pipeline=pipeline if role == "prefill" and name != "p3" else "",
        )
        made.join(described, COST)
    return made


def ask(name: str, num_tokens: int) -> PlacementRequest:
    return PlacementRequest(RequestId(name), "m", num_tokens, 10)


def test_only_instances_that_say_they_can_share_a_prompt() -> None:
    assert conductor(pipeline="").place(ask("a", 100_000), now_s=0).helpers == ()
    assert conductor(max_stages=1).place(ask("a", 100_000), now_s=0).helpers == ()
    placement = conductor().place(ask("a", 100_000), now_s=0)
    assert {placement.prefill.node, *placement.helpers} == {"p0", "p1", "p2"}
    assert placement.predicted_ttft_s == pytest.approx(
        pipelined_s(COST, 100_000, 0, num_stages=3, chunk_tokens=4096)
    )


def test_all_of_a_group_are_busy_until_it_ends_and_free_when_it_is_cancelled() -> None:
    made = conductor()
    first = made.place(ask("a", 100_000), now_s=0)
    made.account(first, ask("a", 100_000), now_s=0)
    second = made.place(ask("b", 4_000), now_s=0)
    assert second.prefill.node == "p3", "the one that is in no group"
    queues = {option.node: option.queue_s for option in second.explain()[0]}
    assert [queues[NodeId(node)] for node in ("p0", "p1", "p2")] == [
        pytest.approx(first.prefill_work_s)
    ] * 3
    made.finish(RequestId("a"), now_s=0.0)
    third = made.place(ask("c", 4_000), now_s=0)
    assert {option.queue_s for option in third.explain()[0]} == {0.0}


def test_a_group_is_void_when_one_of_it_dies() -> None:
    made = conductor()
    placement = made.place(ask("a", 100_000), now_s=0)
    made.account(placement, ask("a", 100_000), now_s=0)
    (work,) = made.die(placement.helpers[0], now_s=1.0)
    assert work.request_id == "a"
    assert made.num_running == 0
