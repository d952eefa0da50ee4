"""Plans are pure: same inputs, same plan, that of the plain formula; and no plan uses who must not be used."""

import re
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.plain_conductor import Scene, plain_plan

from daemons.conductor.early_rejection import Objectives
from daemons.conductor.latency import CostModel
from daemons.conductor.placement import MAX_OPTIONS, Placement
from daemons.conductor.prefill_placement import POLICIES, Tuning
from daemons.conductor.put_placement import PutNode, choose_put_target
from daemons.conductor.view import InstanceView, PlacementRequest
from daemons.conductor.workload import Work
from daemons.config.mc_master import Policy
from daemons.core.errors import McError, NotFound, Rejected, Unavailable
from daemons.core.ids import HostId, NodeId, RequestId

H0, H1 = HostId("h0"), HostId("h1")
NS = b"n" * 16
POLICY_NAMES = sorted(POLICIES)


def prefill(name: str, **more: object) -> InstanceView:
    made = InstanceView(
        node=NodeId(name),
        role="prefill",
        host_id=H0,
        state="alive",
        model="m",
        namespace=NS,
        cost=CostModel(),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def decode(name: str, **more: object) -> InstanceView:
    return replace(prefill(name), role="decode", **more)  # type: ignore[arg-type]


def request(**more: object) -> PlacementRequest:
    made = PlacementRequest(
        request_id=RequestId("r"), model="m", num_prompt_tokens=1000, max_tokens=100
    )
    return replace(made, **more)  # type: ignore[arg-type]


def view(*instances: InstanceView, works: tuple[Work, ...] = ()) -> Scene:
    return Scene(instances, works)


def place(scene: Scene, asked: PlacementRequest, tuning: Tuning) -> Placement:
    return scene.place(asked, tuning)


def work(
    node: str, *, tokens: int, end_s: float = 1.0, name: str = "w", prefill_s: float = 0.0
) -> Work:
    """Runs on a decode instance for so long, prefilled where nobody else is."""
    return Work(
        request_id=RequestId(name),
        prefill=NodeId(f"before {name}"),
        decode=NodeId(node),
        prefill_s=prefill_s,
        num_tokens=tokens,
        decode_s=end_s,
        started_s=0.0,
        context_tokens=tokens // 2,
    )


def test_policy_table_is_what_the_config_accepts() -> None:
    assert set(get_args(Policy)) == set(POLICIES)


costs = st.builds(
    CostModel,
    fixed_s=st.floats(0, 0.1),
    token_s=st.floats(1e-6, 1e-2),
    token_context_s=st.floats(0, 1e-6),
    step_s=st.floats(1e-3, 0.2),
    load_token_s=st.floats(1e-8, 1e-3),
    sequence_s=st.floats(0, 1e-2),
    context_token_s=st.floats(0, 1e-6),
)
instances = st.builds(
    InstanceView,
    node=st.sampled_from([NodeId(f"n{i}") for i in range(8)]),
    role=st.sampled_from(["prefill", "decode"]),
    host_id=st.sampled_from([H0, H1]),
    state=st.sampled_from(["alive", "suspect", "dead"]),
    model=st.sampled_from(["m", "m", "other"]),
    namespace=st.sampled_from([NS, b"o" * 16]),
    cost=costs,
    queue_s=st.floats(0, 100),
    num_requests=st.integers(0, 20),
    capacity_tokens=st.sampled_from([0, 500, 5000]),
    last_chosen=st.integers(0, 5),
    is_reuse_safe=st.booleans(),
)
requests = st.builds(
    PlacementRequest,
    request_id=st.sampled_from([RequestId("a"), RequestId("b")]),
    model=st.just("m"),
    num_prompt_tokens=st.integers(1, 4000),
    max_tokens=st.integers(1, 500),
    matched_tokens=st.integers(0, 4000),
    local_tokens=st.dictionaries(st.sampled_from([H0, H1]), st.integers(0, 4000)),
    device_tokens=st.dictionaries(
        st.sampled_from([NodeId(f"n{i}") for i in range(8)]), st.integers(0, 4000)
    ),
    exclude=st.frozensets(st.sampled_from([NodeId(f"n{i}") for i in range(8)]), max_size=4),
)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    seen = draw(st.lists(instances, max_size=8, unique_by=lambda i: i.node))
    decodes = [i.node for i in seen if i.role == "decode"]
    works = [
        work(
            draw(st.sampled_from(decodes)),
            tokens=draw(st.integers(1, 3000)),
            end_s=draw(st.floats(0, 150)),
            name=f"w{number}",
            prefill_s=draw(st.sampled_from([0.0, 0.5, 20.0])),
        )
        for number in range(draw(st.integers(0, 12)) if decodes else 0)
    ]
    return Scene(tuple(seen), tuple(works), draw(st.floats(0, 50)))


@settings(max_examples=150)
@given(scene=scenes(), asked=requests, policy=st.sampled_from(POLICY_NAMES), seed=st.integers(0, 3))
def test_plans_are_those_of_the_plain_formula_repeatable_and_use_only_who_may_serve(
    scene: Scene, asked: PlacementRequest, policy: str, seed: int
) -> None:
    tuning, seen = Tuning(policy=policy, seed=seed), scene.instances
    plain = plain_plan(scene, asked, tuning)
    try:
        plan = place(scene, asked, tuning)
    except McError as refused:
        assert plain is None
        with pytest.raises(type(refused), match=re.escape(refused.message)):
            place(scene, asked, tuning)
        return
    assert plain is not None
    assert (plan.prefill.node, plan.decode.node) == (plain.prefill, plain.decode)
    assert plan.matched_tokens == plain.matched
    assert (plan.predicted_ttft_s, plan.step_s) == (plain.ttft_s, plain.step_s)
    assert plan == place(scene, asked, tuning)
    by_node = {i.node: i for i in seen}
    for chosen, role in ((plan.prefill, "prefill"), (plan.decode, "decode")):
        assert by_node[chosen.node].role == chosen.role == role
        assert chosen.state == by_node[chosen.node].state != "dead"
        assert chosen.node not in asked.exclude
        assert chosen.model == "m"
        assert chosen.capacity_tokens == 0 or asked.num_prompt_tokens <= chosen.capacity_tokens
    assert plan.decode.capacity_tokens == 0 or asked.needed_tokens <= plan.decode.capacity_tokens
    assert plan.prefill.namespace == plan.decode.namespace
    assert plan.prefill.queue_s <= tuning.max_queue_s
    held = asked.device_tokens.get(plan.prefill.node, 0) if plan.prefill.is_reuse_safe else 0
    assert 0 <= plan.matched_tokens <= max(asked.matched_tokens, held)
    if not (plan.prefill.is_reuse_safe and plan.decode.is_reuse_safe):
        assert plan.matched_tokens <= held
    if "suspect" in (plan.prefill.state, plan.decode.state):
        healthy = [i for i in seen if i.state == "alive" and i.node not in asked.exclude]
        pairs = {(i.role, i.namespace) for i in healthy if i.model == "m"}
        assert not any(("prefill", ns) in pairs and ("decode", ns) in pairs for _, ns in pairs)
    assert {option.node for option in plan.explain()[0]} >= {plan.prefill.node}
    assert plan.predicted_ttft_s > 0


def test_under_load_the_one_with_the_prefix_is_chosen_though_another_has_a_shorter_queue() -> None:
    asked = request(num_prompt_tokens=2000, matched_tokens=1920, local_tokens={H1: 1920})
    cost = CostModel(load_token_s=1e-7, remote_load_factor=1e6)  # too slow to pull
    calm = Scene((prefill("p", cost=cost, queue_s=4.0), prefill("q", cost=cost), decode("d")))
    here = replace(calm.instances[0], host_id=H1, queue_s=1.0)
    idle = replace(calm, instances=(here, *calm.instances[1:]))
    assert place(idle, asked, Tuning()).prefill.node == "q"
    before = (work("d", tokens=10, prefill_s=0.1),)
    busy = tuple(replace(i, queue_s=i.queue_s + 5) for i in idle.instances[:2])
    plan = place(Scene((*busy, decode("d")), before), asked, Tuning())
    assert plan.prefill.node == "p"
    chosen, other = plan.explain()[0]
    assert (chosen.node, other.node) == ("p", "q")
    assert chosen.total_s > other.total_s
    assert chosen.total_s + chosen.delay_s < other.total_s + other.delay_s


def test_the_best_of_many_are_explained_and_the_chosen_one_always() -> None:
    many = view(*(prefill(f"p{i:02}", queue_s=0.1 * i) for i in range(40)), decode("d"))
    plan = place(many, request(), Tuning())
    assert [o.node for o in plan.explain()[0]] == [f"p{i:02}" for i in range(MAX_OPTIONS)]
    for draw in range(20):
        plan = place(many, request(), Tuning(policy="random", seed=draw))
        assert len(plan.explain()[0]) == MAX_OPTIONS
        assert plan.prefill.node in {option.node for option in plan.explain()[0]}


def test_what_lies_in_its_own_arena_costs_an_instance_no_load() -> None:
    slow = replace(CostModel(), load_token_s=1e-3)
    seen = view(prefill("a", cost=slow), prefill("b", cost=slow), decode("d"))
    asked = request(matched_tokens=900, local_tokens={H0: 900}, device_tokens={NodeId("b"): 640})
    plan = place(seen, asked, Tuning())
    options = {option.node: option for option in plan.explain()[0]}
    assert plan.prefill.node == "b"
    assert (options["b"].matched_tokens, options["b"].device_tokens) == (640, 640)
    assert (options["b"].load_s, options["a"].device_tokens) == (0.0, 0)
    alone = place(seen, replace(asked, matched_tokens=0, local_tokens={}), Tuning())
    assert (alone.prefill.node, alone.matched_tokens) == ("b", 640)


def test_who_will_have_ended_is_not_in_the_way() -> None:
    """The prompt takes half a second: by then the short one is over, and the long one is not."""
    long, short = work("a", tokens=900, end_s=60.0), work("b", tokens=900, end_s=0.1)
    plan = place(view(prefill("p"), decode("a"), decode("b"), works=(long,)), request(), Tuning())
    assert plan.decode.node == "b"
    busy = view(
        prefill("p"),
        decode("a"),
        decode("b"),
        works=(long, replace(short, request_id=RequestId("s"))),
    )
    assert place(busy, request(), Tuning()).decode.node == "b"


def test_time_picks_the_shortest_total_of_queue_load_and_prefill() -> None:
    busy = prefill("busy", queue_s=1.0)
    idle = prefill("idle")
    plan = place(view(busy, idle, decode("d")), request(), Tuning())
    assert plan.prefill.node == "idle"
    terms = {option.node: option.total_s for option in plan.explain()[0]}
    assert terms["busy"] == pytest.approx(terms["idle"] + 1.0)


def test_equal_instances_take_turns() -> None:
    first, second = prefill("a", last_chosen=7), prefill("b", last_chosen=3)
    d0, d1 = decode("c", last_chosen=2), decode("d", last_chosen=1)
    plan = place(view(first, second, d0, d1), request(), Tuning())
    assert (plan.prefill.node, plan.decode.node) == ("b", "d")


def test_loading_that_costs_more_than_computing_is_not_planned() -> None:
    slow = prefill("p", cost=CostModel(load_token_s=1.0))
    plan = place(view(slow, decode("d")), request(matched_tokens=900), Tuning())
    assert plan.matched_tokens == 0
    quick = prefill("p")
    plan = place(view(quick, decode("d")), request(matched_tokens=900), Tuning())
    assert plan.matched_tokens == 900


def test_cache_aware_reuses_only_what_its_host_holds() -> None:
    near, far = prefill("near", host_id=H0), prefill("far", host_id=H1)
    asked = request(matched_tokens=900, local_tokens={H0: 600})
    plan = place(view(near, far, decode("d")), asked, Tuning(policy="cache-aware"))
    assert (plan.prefill.node, plan.matched_tokens) == ("near", 600)


def test_algorithm_1_fetches_beyond_the_threshold_and_recomputes_below_it() -> None:
    asked = request(matched_tokens=900, local_tokens={H0: 700})
    near = prefill("near", host_id=H0)
    lenient = Tuning(policy="kvcache-centric", balancing_threshold=1.5)
    strict = Tuning(policy="kvcache-centric", balancing_threshold=1.1)
    assert place(view(near, decode("d")), asked, lenient).matched_tokens == 700
    assert place(view(near, decode("d")), asked, strict).matched_tokens == 900
    nothing_local = request(matched_tokens=900)
    assert place(view(near, decode("d")), nothing_local, lenient).matched_tokens == 900


def test_random_is_drawn_from_seed_and_request() -> None:
    many = view(*(prefill(f"p{i}") for i in range(8)), decode("d"))
    drawn = {
        place(many, request(request_id=RequestId(str(i))), Tuning(policy="random")).prefill.node
        for i in range(50)
    }
    assert len(drawn) == 8


def test_decode_is_the_one_with_the_shortest_step_that_has_room() -> None:
    crowded = decode("crowded", num_requests=10, capacity_tokens=10_000)
    full = decode("full", capacity_tokens=10_000)
    free = decode("free", num_requests=2, capacity_tokens=10_000)
    scene = view(prefill("p"), crowded, full, free, works=(work("full", tokens=9500),))
    assert place(scene, request(), Tuning()).decode.node == "free"


def test_refusals_name_what_is_wrong() -> None:
    with pytest.raises(Unavailable):
        place(view(), request(), Tuning())
    with pytest.raises(NotFound, match="known: m"):
        place(view(prefill("p"), decode("d")), request(model="x"), Tuning())
    with pytest.raises(Unavailable, match="no decode") as gone:
        place(view(prefill("p"), decode("d", state="dead")), request(), Tuning())
    assert gone.value.retry_after_ms
    with pytest.raises(Unavailable, match="namespace"):
        place(view(prefill("p"), decode("d", namespace=b"x")), request(), Tuning())
    with pytest.raises(Rejected, match="every prefill queue") as late:
        place(view(prefill("p", queue_s=99), decode("d")), request(), Tuning())
    assert late.value.retry_after_ms
    with pytest.raises(Rejected, match="lower max_tokens"):
        place(view(prefill("p"), decode("d", capacity_tokens=1000)), request(), Tuning())
    with pytest.raises(Rejected, match="shorten it"):
        place(view(prefill("p", capacity_tokens=100), decode("d")), request(), Tuning())
    crowded = view(
        prefill("p"),
        decode("d", capacity_tokens=2000),
        works=(work("d", tokens=1900, end_s=99),),
    )
    with pytest.raises(Rejected, match="every decode queue"):
        place(crowded, request(), Tuning())


def test_a_prompt_goes_to_a_prefill_node_that_can_hold_it() -> None:
    small, large = prefill("small", capacity_tokens=100), prefill("large", queue_s=5)
    assert place(view(small, large, decode("d")), request(), Tuning()).prefill.node == "large"


def test_request_of_a_namespace_that_lost_a_role_is_told_of_the_other() -> None:
    instances = view(
        prefill("p-old"),
        prefill("p-new", namespace=b"w" * 16),
        decode("d-new", namespace=b"w" * 16),
    )
    with pytest.raises(Unavailable, match=r"no decode node .* in namespace 6e6e6e6e.* 1 other"):
        place(instances, request(namespace=NS), Tuning())
    assert place(instances, request(namespace=b"w" * 16), Tuning()).decode.node == "d-new"


def test_suspects_serve_when_nobody_else_can() -> None:
    suspect, healthy = prefill("s", state="suspect"), prefill("h", queue_s=5)
    d = decode("d")
    assert place(view(suspect, healthy, d), request(), Tuning()).prefill.node == "h"
    assert place(view(suspect, d), request(), Tuning()).prefill.node == "s"
    excluded = request(exclude=frozenset({NodeId("h")}))
    assert place(view(suspect, healthy, d), excluded, Tuning()).prefill.node == "s"


def put_node(name: str, **more: object) -> PutNode:
    made = PutNode(NodeId(name), H0, "alive", 0, 1000, 0)
    return replace(made, **more)  # type: ignore[arg-type]


def test_new_blocks_go_to_the_same_host_then_to_room_then_in_turn() -> None:
    def chosen(*nodes: PutNode) -> str | None:
        return choose_put_target(nodes, near=H0, full=0.95)

    assert chosen() is None
    assert chosen(put_node("far", host_id=H1), put_node("near", used_bytes=500)) == "near"
    assert chosen(put_node("far", host_id=H1), put_node("near", used_bytes=960)) == "far"
    assert chosen(put_node("a", used_bytes=500), put_node("b", used_bytes=100)) == "b"
    assert chosen(put_node("a", last_chosen=4), put_node("b", last_chosen=2)) == "b"
    assert chosen(put_node("a", state="suspect"), put_node("b", used_bytes=900)) == "b"
    assert chosen(put_node("a", state="suspect"), put_node("b", state="dead")) == "a"


def test_a_request_that_names_its_namespace_is_served_by_no_other() -> None:
    other = b"o" * 16
    nodes = view(
        prefill("p1"), decode("d1"), prefill("p2", namespace=other), decode("d2", namespace=other)
    )
    for namespace in (NS, other):
        plan = place(nodes, request(namespace=namespace), Tuning())
        assert plan.prefill.namespace == namespace
        assert plan.decode.namespace == namespace
    with pytest.raises(Unavailable):
        place(nodes, request(namespace=b"x" * 16), Tuning())


def test_without_pulling_only_what_the_host_holds_is_reused() -> None:
    asked = request(matched_tokens=900, local_tokens={H0: 300})
    near, far = prefill("near", host_id=H0), prefill("far", host_id=H1)
    for policy in POLICY_NAMES:
        plan = place(view(near, far, decode("d")), asked, Tuning(policy=policy, may_pull=False))
        assert plan.matched_tokens <= (300 if plan.prefill.node == "near" else 0)


def test_lmetric_weighs_new_tokens_by_the_requests_there() -> None:
    asked = request(num_prompt_tokens=1000, matched_tokens=900, local_tokens={H0: 800})
    tuning = Tuning(policy="lmetric")
    for num_requests, chosen in ((3, "near"), (5, "far")):  # 200 * (n + 1) against 1000
        near = prefill("near", host_id=H0, num_requests=num_requests)
        assert (
            place(view(near, prefill("far", host_id=H1), decode("d")), asked, tuning).prefill.node
            == chosen
        )


def test_dynamo_weighs_waiting_tokens_against_cached_ones() -> None:
    asked = request(num_prompt_tokens=1000, matched_tokens=900, local_tokens={H0: 800})
    tuning = Tuning(policy="dynamo")
    token_s = CostModel().token_s
    for waiting, chosen in ((700, "near"), (900, "far")):
        near = prefill("near", host_id=H0, queue_s=waiting * token_s)
        assert (
            place(view(near, prefill("far", host_id=H1), decode("d")), asked, tuning).prefill.node
            == chosen
        )


def test_a_predicted_miss_of_the_objective_is_rejected_with_the_time_to_wait() -> None:
    def strict(ttft_s: float) -> Tuning:
        return Tuning(objectives=Objectives(ttft_s=ttft_s, shed_from=1.0))

    seen = view(prefill("p", queue_s=9.0), decode("d"))
    assert place(seen, request(), strict(10.0)).prefill.node == "p"
    with pytest.raises(Rejected, match="objective is 5 s") as error:
        place(seen, request(), strict(5.0))
    assert error.value.retry_after_ms is not None
    assert 4000 <= error.value.retry_after_ms <= 5000


def test_load_hides_behind_compute() -> None:
    cost = CostModel(load_token_s=1e-4)
    asked = request(num_prompt_tokens=1000, matched_tokens=800, local_tokens={H0: 800})
    plan = place(view(prefill("p", host_id=H0, cost=cost), decode("d")), asked, Tuning())
    assert plan.predicted_ttft_s == max(cost.load_s(800, 0), cost.prefill_s(1000, 800))
