"""Predictions follow what requests really took."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemons.conductor.conductor import Conductor, Served
from daemons.conductor.correction import Correction
from daemons.conductor.instance_table import InstanceDescription
from daemons.conductor.latency import CostModel
from daemons.conductor.prefill_placement import Tuning
from daemons.conductor.view import PlacementRequest
from daemons.core.ids import HostId, NodeId, RequestId
from daemons.protocol.node import InstanceLoad


@given(
    fixed_s=st.floats(0, 0.2),
    factor=st.floats(0.3, 3),
    predicted=st.lists(st.floats(0.01, 10), min_size=12, max_size=12, unique=True),
)
def test_a_steady_error_is_learned(fixed_s: float, factor: float, predicted: list[float]) -> None:
    correction = Correction()
    for predicted_s in predicted:
        correction.observe(predicted_s, fixed_s + factor * predicted_s)
    cost = correction.apply(CostModel(fixed_s=0.0, token_s=1e-3, token_context_s=0.0))
    if max(predicted) > 3 * min(predicted) and fixed_s < min(predicted):
        for predicted_s in predicted[-3:]:
            expected_s = fixed_s + factor * predicted_s
            corrected_s = cost.fixed_s + cost.token_s * predicted_s / 1e-3
            assert corrected_s == pytest.approx(expected_s, rel=0.25)
    assert cost.fixed_s >= 0
    assert 0.2 <= correction.factor <= 5


def test_a_factor_is_learned_from_requests_that_are_all_alike() -> None:
    correction = Correction()
    for _ in range(5):
        correction.observe(1.0, 2.0)
    assert (correction.fixed_s, correction.factor) == (0.0, pytest.approx(2.0))
    for _ in range(40):
        correction.observe(1.0, 1.0)
    assert correction.factor == pytest.approx(1.0, abs=0.05)
    correction.observe(0.0, 1.0)
    correction.observe(1.0, 1e9)
    assert correction.factor == pytest.approx(1.0, abs=0.05)


def test_an_instance_that_is_slower_than_it_says_is_predicted_as_it_is() -> None:
    conductor = Conductor(Tuning())
    node = NodeId("p")
    conductor.join(InstanceDescription(node, "prefill", HostId("h"), "m", b""))
    conductor.join(InstanceDescription(NodeId("d"), "decode", HostId("h"), "m", b""))
    conductor.hear(node, InstanceLoad(prefill_token_s=1e-3), now_s=0)
    now_s = 0.0
    predicted = []
    for number in range(12):
        request = PlacementRequest(RequestId(str(number)), "m", 400 + 100 * (number % 3), 10)
        placement = conductor.place(request, now_s=now_s)
        conductor.account(placement, request, now_s=now_s)
        actual_s = 0.1 + 2e-3 * request.num_prompt_tokens
        predicted.append(placement.predicted_ttft_s / actual_s)
        now_s += 10
        conductor.finish(request.request_id, now_s=now_s, served=Served(0, actual_s))
        conductor.hear(node, InstanceLoad(prefill_token_s=1e-3), now_s=now_s)
    assert predicted[0] < 0.5
    assert predicted[-1] == pytest.approx(1.0, abs=0.05)


def test_what_is_known_of_an_instance_before_it_measured_itself_counts_until_then() -> None:
    conductor = Conductor(Tuning())
    node = NodeId("p")
    seed = CostModel(fixed_s=0.0, token_s=0.01, token_context_s=0.0)
    conductor.join(InstanceDescription(node, "prefill", HostId("h"), "m", b""), seed)
    conductor.join(InstanceDescription(NodeId("d"), "decode", HostId("h"), "m", b""))
    request = PlacementRequest(RequestId("r"), "m", 100, 10)
    assert conductor.place(request, now_s=0).predicted_ttft_s == pytest.approx(1.0)
    conductor.hear(node, InstanceLoad(), now_s=0)
    assert conductor.place(request, now_s=0).predicted_ttft_s == pytest.approx(1.0)
    conductor.hear(node, InstanceLoad(prefill_token_s=0.002), now_s=0)
    assert conductor.place(request, now_s=0).predicted_ttft_s == pytest.approx(0.2)
