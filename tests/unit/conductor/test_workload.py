"""Promised work is counted until it is done, given up, or its instance says it is idle."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.conductor import workload
from daemons.conductor.admission import prefill_queue_s
from daemons.conductor.instance_table import InstanceDescription, InstanceTable
from daemons.conductor.latency import CostModel
from daemons.conductor.workload import MAX_REQUEST_S, SETTLE_S, Work, Workload
from daemons.core.ids import HostId, NodeId, RequestId
from daemons.protocol.node import InstanceLoad

P, D = NodeId("p"), NodeId("d")


def started() -> Workload:
    """Two prefills and two decodes."""
    table = InstanceTable()
    for node in (P, NodeId("p2"), D, NodeId("d2")):
        role = "prefill" if node.startswith("p") else "decode"
        table.put(InstanceDescription(node, role, HostId("h"), "m", b""))
    return Workload(table)


def reserved(load: Workload, node: NodeId) -> int:
    return int(load._table.reserved_tokens[load._table.row_by_node[node]])


def work(name: str, *, at_s: float = 0.0, prefill_s: float = 1.0, tokens: int = 100) -> Work:
    return Work(RequestId(name), P, D, prefill_s, tokens, decode_s=5.0, started_s=at_s)


def queue_s(load: Workload, now_s: float, node: NodeId = P) -> float:
    table = load._table
    return float(
        prefill_queue_s(table, table.rows("m", b"", "prefill", "alive"), now_s)[int(node != P)]
    )


def test_queue_is_what_was_promised_and_runs_off_with_time() -> None:
    load = started()
    load.add(work("a"))
    load.add(work("b", prefill_s=2.0))
    assert queue_s(load, 0) == 3.0
    assert queue_s(load, 2.5) == 0.5
    assert queue_s(load, 9) == 0.0
    assert reserved(load, D) == 200


def test_done_takes_back_what_was_not_used() -> None:
    load = started()
    load.add(work("a"))
    load.add(work("b"))
    load.remove(RequestId("a"), now_s=0.25)
    assert queue_s(load, 0.25) == pytest.approx(1.0)
    assert reserved(load, D) == 100
    assert load.remove(RequestId("a"), now_s=1) is None


def test_decoding_is_as_long_as_it_was_for_those_who_got_tokens() -> None:
    load = started()
    for number in range(4):
        load.add(work(str(number)))
    load.finish(RequestId("0"), now_s=1.0 + 6.0)
    assert load.mean_decode_s == 6.0
    for number in (1, 2, 3):  # refused where they were to be decoded, or given up before
        load.finish(RequestId(str(number)), now_s=7.0, has_tokens=False)
    assert load.mean_decode_s == 6.0
    assert len(load) == reserved(load, D) == 0


def test_same_request_again_replaces_the_first() -> None:
    load = started()
    load.add(work("a"))
    load.add(work("a"))
    assert len(load) == 1
    assert queue_s(load, 0) == 1.0


def test_a_reported_queue_counts_where_the_instance_has_more_than_was_planned_here() -> None:
    load = started()
    load.hear(P, InstanceLoad(num_queued=3, num_running=1, queued_tokens=4000), now_s=0)
    assert queue_s(load, 0) == 4 * CostModel().prefill_s(1000, 0)
    load.add(work("a", prefill_s=9.0))
    load.hear(P, InstanceLoad(num_running=1, queued_tokens=4000), now_s=0)
    assert queue_s(load, 4.0) == 5.0


def test_beats_correct_a_queue_that_runs_faster_or_slower_than_predicted() -> None:
    load = started()
    for index, name in enumerate("abc"):
        load.add(work(name, at_s=0.001 * index, prefill_s=2.0))
    assert queue_s(load, 1.0) == pytest.approx(5.0)
    load.hear(P, InstanceLoad(num_running=3), now_s=1.0)
    assert queue_s(load, 1.0) == pytest.approx(5.0), "as predicted"
    load.hear(P, InstanceLoad(num_running=1), now_s=1.0)
    assert queue_s(load, 1.0) == pytest.approx(2.0), "two are done already"
    load.remove(RequestId("a"), now_s=1.0)
    assert queue_s(load, 1.0) == pytest.approx(2.0), "and do not count twice"
    load.add(work("d", at_s=5.0, prefill_s=2.0))
    load.add(work("e", at_s=5.0, prefill_s=2.0))
    load.hear(P, InstanceLoad(num_running=2), now_s=8.5)
    assert queue_s(load, 8.5) == pytest.approx(2.0), "the second has not begun"
    load.add(work("f", at_s=8.9, prefill_s=2.0))
    load.hear(P, InstanceLoad(), now_s=9.0)
    assert queue_s(load, 9.0) == pytest.approx(2.0), "the last is on its way"
    load.hear(P, InstanceLoad(), now_s=9.5)
    assert queue_s(load, 9.5) == 0.0


def test_a_queue_counts_by_what_is_known_of_its_instance_by_now() -> None:
    load = started()
    for name in "abc":
        planned = replace(work(name, prefill_s=2.0), num_prompt_tokens=1000, num_cached_tokens=500)
        load.add(planned)
    load._table.set_cost(P, CostModel(fixed_s=0.0, token_s=0.01, token_context_s=0.0))
    load.hear(P, InstanceLoad(num_running=3), now_s=1.0)
    assert queue_s(load, 1.0) == pytest.approx(1.0 + 5.0 + 5.0), "the first has a second left"
    load.hear(P, InstanceLoad(num_running=2), now_s=2.0)
    assert queue_s(load, 2.0) == pytest.approx(10.0)
    load._table.set_cost(P, CostModel(fixed_s=0.0, token_s=0.004, token_context_s=0.0))
    load.hear(P, InstanceLoad(num_running=2), now_s=3.0)
    assert queue_s(load, 3.0) == pytest.approx(4.0)


def test_gone_node_takes_its_requests_along() -> None:
    load = started()
    load.add(work("a"))
    assert [gone.request_id for gone in load.drop_node(D, now_s=0)] == ["a"]
    assert queue_s(load, 0) == 0
    assert len(load) == 0


def test_idle_instance_has_none_of_what_was_sent_long_ago() -> None:
    load = started()
    load.add(work("a", prefill_s=100))
    load.hear(D, InstanceLoad(), now_s=SETTLE_S / 2)
    assert reserved(load, D) == 100
    load.hear(P, InstanceLoad(), now_s=SETTLE_S + 1)
    assert queue_s(load, SETTLE_S + 1) == 0
    assert reserved(load, D) == 100
    load.hear(D, InstanceLoad(num_running=1), now_s=SETTLE_S + 1)
    assert reserved(load, D) == 100
    load.hear(D, InstanceLoad(), now_s=SETTLE_S + 1)
    assert reserved(load, D) == 0
    assert len(load) == 0


def test_unreported_ends_expire() -> None:
    load = started()
    load.add(work("a"))
    load.add(work("b", at_s=10))
    assert [old.request_id for old in load.expire(now_s=MAX_REQUEST_S + 1)] == ["a"]
    assert len(load) == 1


def test_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "MAX_REQUESTS", 3)
    load = started()
    for index in range(10):
        load.add(work(str(index)))
    assert len(load) == 3
    assert reserved(load, D) == 300


def test_full_decode_waits_until_enough_have_ended() -> None:
    load = started()
    for index in range(4):
        load.add(work(str(index), tokens=250))
    assert load.decode_wait_s(D, 10_000, 500, now_s=0) == 0
    assert load.decode_wait_s(D, 1000, 250, now_s=0) == pytest.approx(6.0)
    assert load.decode_wait_s(D, 1000, 500, now_s=1) == pytest.approx(6.0)
    assert load.decode_wait_s(D, 0, 500, now_s=0) == 0


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "done", "idle", "drop"]),
        st.sampled_from("abcdef"),
        st.floats(0, 5),
        st.sampled_from([P, NodeId("p2")]),
        st.sampled_from([D, NodeId("d2")]),
    ),
    max_size=40,
)


@given(steps=steps)
def test_reservations_always_equal_the_work_that_is_left(
    steps: list[tuple[str, str, float, NodeId, NodeId]],
) -> None:
    load, now_s, left = started(), 0.0, dict[str, Work]()
    for action, name, seconds, prefill, decode in steps:
        now_s += seconds
        match action:
            case "add":
                left[name] = Work(
                    RequestId(name), prefill, decode, 1.0, 10, 1.0, now_s, context_tokens=7
                )
                load.add(left[name])
            case "done":
                assert load.remove(RequestId(name), now_s=now_s) == left.pop(name, None)
            case "drop":
                load.drop_node(decode, now_s=now_s)
                left = {key: kept for key, kept in left.items() if kept.decode != decode}
            case _:
                load.hear(prefill, InstanceLoad(), now_s=now_s)
        for node in (D, NodeId("d2")):
            num_left = sum(w.decode == node for w in left.values())
            row = load._table.row_by_node[node]
            assert reserved(load, node) == 10 * num_left
            assert np.isfinite(load._table.decode_slots.ends_s[row]).sum() == num_left
            assert load._table.decode_slots.context_tokens[row].sum() == 7 * num_left
        for node in (P, NodeId("p2")):
            promised = sum(w.prefill == node for w in left.values())
            assert 0 <= queue_s(load, now_s, node) <= promised + 1e-6
    assert len(load) == len(left)
