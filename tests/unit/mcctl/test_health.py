"""Why a cluster is not well, from what its master lists."""

from typing import Literal

import msgspec
import pytest

from daemons.core.ids import Epoch, HostId, Incarnation, NodeId, RequestId
from daemons.protocol.node import (
    InstanceLoad,
    ListedNode,
    ListNodesReply,
    ModelDescription,
    NodeDescription,
    NodeState,
    Role,
)
from daemons.protocol.request_list import ListedRequest
from mcctl.health import Reason, reasons, served_models

RequestState = Literal["running", "done", "failed", "rejected"]
MODEL = ModelDescription(
    name="m", namespace=b"n" * 16, dtype="float32", block_tokens=64, chunk_tokens=256, max_context_tokens=100,
    num_layers=1, num_kv_heads=1, head_dim=8, vocab_size=10, eos_token_ids=[], is_reuse_safe=True,
)  # fmt: skip


def node(name: str, role: Role, state: NodeState = "alive", heard_s: float = 0.1) -> ListedNode:
    description = NodeDescription(
        node=NodeId(name), role=role, host="h", host_id=HostId("h"), epoch=Epoch(1), control="", pid=1,
        software="1.0", model=MODEL if role in ("prefill", "decode") else None,
    )  # fmt: skip
    return ListedNode(
        node=description, state=state, load=None, used_bytes=0, capacity_bytes=0, num_blocks=0, joined_s=1.0,
        last_beat_s=heard_s,
    )  # fmt: skip


def request(state: RequestState, age_s: float = 1.0, why: str = "") -> ListedRequest:
    return ListedRequest(
        request_id=RequestId(f"{state}-{age_s:g}"), model="m", state=state, age_s=age_s, num_prompt_tokens=1,
        num_matched_tokens=0, num_generated_tokens=0, prefill=None, decode=None, predicted_ttft_s=None,
        actual_ttft_s=None, policy="time", candidates=[], why=why,
    )  # fmt: skip


WHOLE = [node("c", "cachenode"), node("p", "prefill"), node("d", "decode"), node("g", "gateway")]


def why(
    *nodes: ListedNode, requests: tuple[ListedRequest, ...] = (), is_local: bool = False
) -> list[Reason]:
    """Of a whole cluster in which these nodes take the place of those of their names."""
    named = {each.node.node: each for each in (*WHOLE, *nodes)}
    reply = ListNodesReply(
        incarnation=Incarnation(1), master=WHOLE[0].node, nodes=list(named.values())
    )
    return reasons(reply, requests, is_local=is_local)


def test_whole_cluster_has_no_reason() -> None:
    assert why(requests=(request("done"), request("running"))) == []
    assert served_models(WHOLE) == ["m"]


@pytest.mark.parametrize("state", ["dead", "suspect"])
def test_node_that_is_away_is_named_with_its_time_and_what_to_type(state: NodeState) -> None:
    (found,) = why(node("c2", "cachenode", state, heard_s=42.0))
    assert (found.what, found.since_s, state in found.problem) == ("c2", 42.0, True)
    assert found.next.startswith("on h: mcctl service list cachenode")
    assert found.meaning
    (local,) = why(node("c2", "cachenode", state), is_local=True)
    assert local.next == "mcctl logs c2; to start it again: mcctl cluster restart c2"


@pytest.mark.parametrize(
    ("name", "role", "what", "meaning"),
    [
        ("d", "decode", "m", "requests for it get 503"),
        ("p", "prefill", "m", "requests for it get 503"),
        ("c", "cachenode", "cachenode", "every prompt is computed"),
        ("g", "gateway", "gateway", "nobody can ask over HTTP"),
    ],
)
def test_role_that_is_missing_comes_first(name: str, role: Role, what: str, meaning: str) -> None:
    first, second = why(node(name, role, "dead", heard_s=9.0))
    assert (first.what, first.since_s) == (what, 9.0)
    assert meaning in first.meaning
    assert second.what == name


def test_cluster_that_nobody_joined_lacks_all() -> None:
    reply = ListNodesReply(incarnation=Incarnation(1), master=WHOLE[0].node, nodes=[])
    found = reasons(reply, [], is_local=False)
    assert [each.problem.split()[1] for each in found] == [
        "decode",
        "prefill",
        "gateway",
        "cachenode",
    ]
    assert all(each.since_s is None for each in found)


def test_draining_nodes_are_told() -> None:
    drained = msgspec.structs.replace(node("c2", "cachenode"), is_draining=True, left_blocks=3)
    (found,) = why(drained)
    assert ("3 blocks left" in found.problem, "undrain c2" in found.next) == (True, True)
    stopping = msgspec.structs.replace(node("d2", "decode"), load=InstanceLoad(is_draining=True))
    (found,) = why(stopping)
    assert "is being stopped" in found.problem


def test_reuse_that_is_off_and_kinds_that_share_nothing_are_told() -> None:
    unsafe = msgspec.structs.replace(MODEL, is_reuse_safe=False, reuse_reason="rounds differently")
    described = msgspec.structs.replace(node("p", "prefill").node, model=unsafe)
    (found,) = why(msgspec.structs.replace(node("p", "prefill"), node=described))
    assert "rounds differently" in found.problem
    other = msgspec.structs.replace(MODEL, namespace=b"o" * 16)
    described = msgspec.structs.replace(node("p", "prefill").node, model=other)
    alone = msgspec.structs.replace(node("p", "prefill"), node=described)
    (found,) = why(alone)
    assert found.problem == "its instances are of 2 kinds that share no KV: p; d"
    assert served_models([alone, node("d", "decode")]) == []


def test_versions_that_differ_are_told() -> None:
    described = msgspec.structs.replace(node("d2", "decode").node, software="2.0")
    (found,) = why(msgspec.structs.replace(node("d2", "decode"), node=described))
    assert "2.0: d2" in found.problem


def test_recent_failures_are_told_with_the_latest_and_old_ones_are_not() -> None:
    (found,) = why(
        requests=(request("failed", 5, "d is gone"), request("failed", 9), request("failed", 4000))
    )
    assert found.problem.startswith("2 of the last 2 failed; the latest, 5.00 s ago: d is gone")
    assert (found.since_s, found.next) == (9, "mcctl request explain failed-5")
    (found,) = why(requests=(request("done"), request("rejected", 2, "TTFT")))
    assert found.problem.startswith("1 of the last 2 rejected")
