"""Of several namespaces that serve one name, the one that can answer best comes first."""

from daemons.conductor.membership import Member
from daemons.conductor.namespaces import rank_models
from daemons.core.ids import Epoch, HostId, NodeId
from daemons.protocol.node import ModelDescription, NodeDescription, NodeState, Role

OLD, NEW = b"o" * 16, b"n" * 16


def member(
    role: Role,
    namespace: bytes,
    *,
    joined_s: float = 0.0,
    state: NodeState = "alive",
    name: str = "m",
) -> Member:
    model = ModelDescription(
        name=name,
        namespace=namespace,
        dtype="float32",
        block_tokens=64,
        chunk_tokens=256,
        max_context_tokens=512,
        num_layers=1,
        num_kv_heads=1,
        head_dim=4,
        vocab_size=100,
        eos_token_ids=[],
        is_reuse_safe=True,
    )
    node = NodeDescription(
        node=NodeId(f"{role}-{namespace.decode()}-{joined_s}"),
        role=role,
        host="h",
        host_id=HostId("h"),
        epoch=Epoch(1),
        control="",
        pid=1,
        software="",
        model=model,
    )
    return Member(node=node, joined_s=joined_s, heard_s=joined_s, peer=b"", state=state)


def ranked(*members: Member) -> list[tuple[str, bytes]]:
    return [(model.name, model.namespace) for model in rank_models(members)]


def pair(namespace: bytes, *, joined_s: float = 0.0) -> list[Member]:
    return [
        member("prefill", namespace, joined_s=joined_s),
        member("decode", namespace, joined_s=joined_s),
    ]


def test_one_that_can_answer_comes_before_more_that_cannot() -> None:
    halves = [member("prefill", OLD, joined_s=i) for i in range(3)]
    assert ranked(*halves, *pair(NEW)) == [("m", NEW), ("m", OLD)]


def test_more_instances_come_before_newer_ones() -> None:
    upgraded = pair(NEW, joined_s=9.0)
    assert ranked(*pair(OLD), member("decode", OLD), *upgraded) == [("m", OLD), ("m", NEW)]
    assert ranked(*pair(OLD), *upgraded) == [("m", NEW), ("m", OLD)], "equal many: the newest"


def test_silent_instances_do_not_count_and_dead_ones_are_gone() -> None:
    silent = [member("prefill", OLD, state="suspect"), member("decode", OLD, state="suspect")]
    assert ranked(*silent, *pair(NEW)) == [("m", NEW), ("m", OLD)]
    assert ranked(*silent) == [("m", OLD)]
    assert ranked(member("prefill", OLD, state="dead")) == []


def test_names_are_in_order_and_do_not_mix() -> None:
    other = member("prefill", NEW, name="a")
    assert ranked(*pair(OLD), other) == [("a", NEW), ("m", OLD)]
