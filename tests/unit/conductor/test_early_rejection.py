"""Who is refused, by which mode, and that nobody is who would find an idle instance."""

from copy import deepcopy
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemons.conductor.conductor import Conductor
from daemons.conductor.early_rejection import (
    MAX_RETRY_AFTER_S,
    MODES,
    Objectives,
    Overload,
    Prospect,
    shed_from,
)
from daemons.conductor.instance_table import InstanceDescription
from daemons.conductor.latency import CostModel
from daemons.conductor.prefill_placement import POLICIES, Tuning
from daemons.conductor.tenant_share import HALF_LIFE_S, MAX_TENANTS, TenantShares
from daemons.conductor.view import PlacementRequest
from daemons.config.mc_master import Admission
from daemons.core.errors import McError, Rejected
from daemons.core.ids import HostId, NodeId, RequestId
from daemons.protocol.node import InstanceLoad

GOALS = Objectives(ttft_s=10.0, tbt_s=0.1, shed_from=0.8)
MODE_NAMES = sorted(MODES)
EASY = Prospect(
    ttft_s=1.0,
    shortest_queue_s=0.0,
    tbt_s=0.03,
    num_others=5,
    decode_load_now=lambda: 0.3,
    decode_load_then=lambda: 0.3,
    mean_decode_s=8.0,
    tenant_share=lambda: 1.0,
)


def request(name: str = "r", **more: object) -> PlacementRequest:
    made = PlacementRequest(
        request_id=RequestId(name), model="m", num_prompt_tokens=1000, max_tokens=100
    )
    return replace(made, **more)  # type: ignore[arg-type]


def is_refused(mode: str, prospect: Prospect, asked: PlacementRequest | None = None) -> bool:
    try:
        MODES[mode](prospect, asked or request(), GOALS, 0)
    except Overload as error:
        return 1000 <= (error.retry_after_ms or 0) <= MAX_RETRY_AFTER_S * 1000
    return False


def test_mode_table_is_what_the_config_accepts() -> None:
    assert set(get_args(Admission)) == set(MODES)


def test_each_mode_looks_at_its_own_prediction() -> None:
    late = replace(EASY, ttft_s=11.0, shortest_queue_s=9.0)
    full_now = replace(EASY, decode_load_now=lambda: 1.2)
    full_then = replace(EASY, decode_load_then=lambda: 1.2)
    slow = replace(EASY, tbt_s=0.11)
    refused = {
        mode: [is_refused(mode, prospect) for prospect in (EASY, late, full_now, full_then, slow)]
        for mode in MODES
    }
    assert refused == {
        "none": [False] * 5,
        "current-load": [False, True, True, False, False],
        "predicted-load": [False, True, False, True, False],
        "objectives": [False, True, False, False, True],
    }


@pytest.mark.parametrize("mode", MODE_NAMES)
def test_a_long_cold_prompt_is_never_refused_by_an_idle_cluster(mode: str) -> None:
    """Its prefill alone takes 40 s, four times the objective, and a step on its context three times the other one."""
    cost = CostModel(token_s=4e-4, context_token_s=3e-6)
    tuning = Tuning(admission=mode, objectives=GOALS)
    conductor = Conductor(tuning)
    for name in ("prefill", "decode"):
        role = "prefill" if name == "prefill" else "decode"
        described = InstanceDescription(NodeId(name), role, HostId("h"), "m", b"")
        conductor.join(described, cost)
    asked = request(num_prompt_tokens=100_000)
    placement = conductor.place(asked, now_s=0)
    assert placement.predicted_ttft_s > 4 * GOALS.ttft_s
    assert placement.step_s > 3 * GOALS.tbt_s
    conductor.account(placement, asked, now_s=0)
    if mode != "none":  # behind it, the queue is longer than the objective
        with pytest.raises(Overload):
            conductor.place(request("second"), now_s=0)
    conductor.finish(asked.request_id, now_s=1)
    assert conductor.place(request("third"), now_s=1)


def test_low_priorities_and_tenants_with_much_give_way_first() -> None:
    starts = [shed_from(priority, 1.0, GOALS) for priority in (-10, -2, -1, 0, 1, 10)]
    assert starts == sorted(starts)
    assert starts[0] == pytest.approx(0.4)
    assert starts[3] == pytest.approx(0.8)
    assert 0.99 < starts[-1] < 1
    waiting = replace(EASY, ttft_s=8.5, shortest_queue_s=8.0)
    assert is_refused("objectives", waiting)
    assert not is_refused("objectives", waiting, request(priority=1))
    assert not is_refused("objectives", replace(waiting, tenant_share=lambda: 0.2))
    early = replace(EASY, ttft_s=6.5, shortest_queue_s=6.0)
    assert not is_refused("objectives", early)
    assert is_refused("objectives", early, request(priority=-1))
    assert is_refused("objectives", replace(early, tenant_share=lambda: 1.9))


def test_shedding_for_the_time_between_tokens_grows_smoothly() -> None:
    def refused(tbt_s: float, **more: object) -> int:
        prospect = replace(EASY, tbt_s=tbt_s, **more)  # type: ignore[arg-type]
        return sum(is_refused("objectives", prospect, request(str(n))) for n in range(400))

    counts = [refused(tbt_s) for tbt_s in (0.08, 0.085, 0.09, 0.095, 0.101)]
    assert counts[0] == 0
    assert counts[-1] == 400
    for count, share in zip(counts[1:4], (0.25, 0.5, 0.75), strict=True):
        assert count / 400 == pytest.approx(share, abs=0.08)
    assert refused(0.09, relative_size=0.2) < counts[2] / 2 < refused(0.09, relative_size=1.8)
    assert refused(0.101, num_others=0) == 0


def test_shares_fade_and_are_bounded() -> None:
    shares = TenantShares()
    assert shares.of("a") == 1.0
    shares.add("a", 30.0, now_s=0)
    assert (shares.of("a"), shares.of("b")) == (1.0, 0.0)
    shares.add("b", 10.0, now_s=0)
    assert shares.of("a") == pytest.approx(1.5)
    shares.add("b", 10.0, now_s=HALF_LIFE_S)
    assert shares.of("b") == pytest.approx(2 * 15 / 30)
    later_s = 1e6 * HALF_LIFE_S
    shares.add("c", 1.0, now_s=later_s)
    assert (len(shares), shares.of("c")) == (1, 1.0)
    for number in range(2 * MAX_TENANTS):
        shares.add(f"t{number}", 1.0, now_s=later_s)
    assert len(shares) == MAX_TENANTS
    assert shares.of(f"t{number}") == pytest.approx(1.0)


def test_a_tenant_that_floods_the_cluster_does_not_crowd_out_a_modest_one() -> None:
    """A prefill node that takes a second for a prompt: the flood asks for three of them a second, the other for 0.2."""
    cost = CostModel(fixed_s=0.0, token_s=1e-3, token_context_s=0.0)
    conductor = Conductor(Tuning(objectives=Objectives(ttft_s=10.0)))
    conductor.join(InstanceDescription(NodeId("p"), "prefill", HostId("h"), "m", b""), cost)
    conductor.join(InstanceDescription(NodeId("d"), "decode", HostId("h"), "m", b""), cost)
    arrivals = sorted(
        [(n / 3, "flood") for n in range(900)] + [(5 * n + 0.1, "modest") for n in range(60)]
    )
    served = {"flood": 0, "modest": 0}
    for number, (now_s, tenant) in enumerate(arrivals):
        asked = request(str(number), tenant=tenant, max_tokens=1)
        try:
            placement = conductor.place(asked, now_s=now_s)
        except Overload:
            continue
        assert placement.predicted_ttft_s <= 10.0
        conductor.account(placement, asked, now_s=now_s)
        served[tenant] += 1
    assert served["modest"] >= 59
    assert served["flood"] + served["modest"] >= 0.97 * 300


CAPACITY = 10_000
NODES = [NodeId(name) for name in ("p0", "p1", "p2", "d0", "d1", "d2")]
events = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "ask", "drain", "die", "suspect", "back", "finish"]),
        st.sampled_from(NODES),
        st.integers(1, 9000),
        st.floats(0, 3),
        st.sampled_from(["", "a", "b"]),
    ),
    max_size=40,
)


@settings(max_examples=120, deadline=None)
@given(
    steps=events,
    mode=st.sampled_from(MODE_NAMES),
    policy=st.sampled_from(sorted(POLICIES)),
)
def test_no_plan_uses_who_must_not_serve_and_a_refused_request_leaves_nothing(
    steps: list[tuple[str, NodeId, int, float, str]], mode: str, policy: str
) -> None:
    life = Life(Tuning(policy=policy, admission=mode, objectives=GOALS, max_queue_s=8.0))
    for action, node, tokens, seconds, tenant in steps:
        life.now_s += seconds
        if action == "ask":
            life.ask(tokens, tenant)
        else:
            life.happen(action, node)
        life.conductor._table.decode_slots.check_invariants()


class Life:
    """A cluster and what has become of its nodes."""

    def __init__(self, tuning: Tuning) -> None:
        self.conductor = Conductor(tuning)
        self.now_s = 0.0
        self.states: dict[NodeId, str] = {}
        self.running: list[RequestId] = []
        self.num_asked = 0
        for node in NODES:
            self.join(node)

    def join(self, node: NodeId) -> None:
        role = "prefill" if node.startswith("p") else "decode"
        described = InstanceDescription(node, role, HostId(node), "m", b"", CAPACITY)
        self.conductor.join(described)
        self.states[node] = "alive"

    def ask(self, tokens: int, tenant: str) -> None:
        self.num_asked += 1
        number = self.num_asked
        asked = request(
            str(number), num_prompt_tokens=tokens, tenant=tenant, priority=number % 3 - 1
        )
        before = picture(self.conductor)
        try:
            placement = self.conductor.place(asked, now_s=self.now_s)
        except McError:
            assert picture(self.conductor) == before
            return
        assert picture(self.conductor) == before
        for used in (placement.prefill, placement.decode):
            assert self.states[used.node] in ("alive", "suspect")
        assert asked.needed_tokens <= CAPACITY
        if placement.decode.reserved_tokens + asked.needed_tokens > CAPACITY:
            assert placement.decode.queue_s <= 8.0, "full, and not for long"
        self.conductor.account(placement, asked, now_s=self.now_s)
        self.running.append(asked.request_id)

    def happen(self, action: str, node: NodeId) -> None:
        state = self.states[node]
        if action == "finish":
            if self.running:
                self.conductor.finish(self.running.pop(0), now_s=self.now_s)
        elif action == "drain" and state in ("alive", "suspect"):
            load = InstanceLoad(is_draining=True, num_running=1)
            self.conductor.hear(node, load, now_s=self.now_s)
            self.states[node] = "draining"
        elif action == "suspect" and state == "alive":
            self.conductor.set_state(node, "suspect")
            self.states[node] = "suspect"
        elif action == "die":
            self.conductor.die(node, now_s=self.now_s)
            self.states[node] = "dead"
        elif action == "back" and state == "dead":
            self.conductor.leave(node, now_s=self.now_s)
            self.join(node)


def picture(conductor: Conductor) -> dict[str, object]:
    """All that a decision could depend on."""
    table = deepcopy({k: v for k, v in vars(conductor._table).items() if isinstance(v, np.ndarray)})
    return {
        "table": {name: column.tolist() for name, column in table.items()},
        "works": list(conductor._workload._work),
        "usage": {t: (u.grown, u.seen_s) for t, u in conductor._tenants._usage.items()},
        "means": (conductor._workload.mean_decode_s, conductor._workload.mean_tokens),
        "num_plans": conductor.num_plans,
    }


def test_what_no_node_could_ever_hold_is_refused_for_good() -> None:
    conductor = Conductor(Tuning())
    conductor.join(InstanceDescription(NodeId("p"), "prefill", HostId("h"), "m", b""))
    conductor.join(InstanceDescription(NodeId("d"), "decode", HostId("h"), "m", b"", 100))
    with pytest.raises(Rejected, match="lower max_tokens") as error:
        conductor.place(request(), now_s=0)
    assert error.value.retry_after_ms is None
    assert not isinstance(error.value, Overload)


def test_who_decodes_for_longer_than_predicted_is_load_until_it_has_ended() -> None:
    conductor = Conductor(Tuning(admission="current-load", objectives=Objectives(tbt_s=0.02)))
    conductor.join(InstanceDescription(NodeId("p"), "prefill", HostId("h"), "m", b""))
    conductor.join(InstanceDescription(NodeId("d"), "decode", HostId("h"), "m", b""))
    first = request("first")
    conductor.account(conductor.place(first, now_s=0.0), first, now_s=0.0)
    with pytest.raises(Overload, match="decode nodes are at"):
        conductor.place(request("second"), now_s=100.0)
    conductor.finish(first.request_id, now_s=101.0)
    conductor.place(request("second"), now_s=102.0)
