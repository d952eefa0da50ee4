"""mcctl request explain: which request is meant, and what its candidates were."""

import msgspec
import pytest

from daemons.core.errors import NotFound, Rejected
from daemons.core.ids import BlockHash, NodeId, RequestId
from daemons.protocol.request import Candidate
from daemons.protocol.request_list import Ahead, ListedRequest
from mcctl.commands.request.explain import weighed
from mcctl.commands.request.recent import _decoded, _predicted, ahead_text, find


def candidate(node: str, total_s: float) -> Candidate:
    return Candidate(
        node=NodeId(node),
        queue_s=0.1,
        load_s=0.2,
        prefill_s=0.3,
        total_s=total_s,
        matched_tokens=64,
    )


def request(request_id: str) -> ListedRequest:
    return ListedRequest(
        request_id=RequestId(request_id), model="m", state="done", age_s=1.0, num_prompt_tokens=100,
        num_matched_tokens=64, num_generated_tokens=3, prefill=NodeId("p0"), decode=NodeId("d0"), predicted_ttft_s=0.5,
        actual_ttft_s=0.6, policy="time",
        candidates=[candidate("p0", 0.4), candidate("p1", 0.9), candidate("d0", 0.1), candidate("d1", 0.2)],
    )  # fmt: skip


def test_candidates_with_their_roles_and_the_chosen_ones() -> None:
    rows = weighed(request("a"), {NodeId("p1"): "prefill"})
    assert [(row.node, row.role, row.is_chosen) for row in rows] == [
        ("p0", "prefill", True),
        ("p1", "prefill", False),
        ("d0", "decode", True),
        ("d1", "gone", False),
    ]
    assert (rows[0].queue_s, rows[0].load_s, rows[0].compute_s, rows[0].total_s) == (
        0.1,
        0.2,
        0.3,
        0.4,
    )


def test_a_prediction_before_anything_was_measured_is_called_a_guess() -> None:
    assert _predicted(request("a")) == "500 ms"
    assert _predicted(msgspec.structs.replace(request("a"), is_guess=True)) == "500 ms (guess)"


def test_drafts_are_told_where_decode_said_its_steps() -> None:
    assert _decoded(request("a")) == "-"
    told = msgspec.structs.replace(
        request("a"), num_generated_tokens=50, num_decode_steps=40, num_drafted_tokens=12,
        num_accepted_tokens=9,
    )  # fmt: skip
    assert _decoded(told) == "50 tokens, 40 steps; 12 tokens guessed, 9 right"


def test_a_request_is_found_by_its_beginning() -> None:
    requests = [request("abc1"), request("abd2"), request("ab")]
    assert find(requests, "abc").request_id == "abc1"
    assert find(requests, "ab").request_id == "ab"
    assert find(requests, None).request_id == "abc1", "the newest"
    with pytest.raises(NotFound, match="request list"):
        find(requests, "x")
    with pytest.raises(NotFound, match="request send"):
        find([], None)
    with pytest.raises(Rejected, match="3 recent requests"):
        find([*requests[:2], request("ac")], "a")


def test_what_a_request_set_going_is_said_with_the_first_blocks() -> None:
    names = [BlockHash(bytes([number] * 16)) for number in range(2)]
    staged = Ahead(what="staged", num_blocks=3, hashes=names, node=NodeId("n0"), tier="ssd")
    assert ahead_text(staged) == "3 blocks from the ssd of n0: 00000000, 01010101, ..."
    replicated = Ahead(what="replicated", num_blocks=1, hashes=names[:1])
    assert ahead_text(replicated) == "1 block: 00000000"
