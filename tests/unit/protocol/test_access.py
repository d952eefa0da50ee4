"""The table of who may ask what: complete, and what matters most in it."""

import typing

from daemons.core.ids import Epoch, HostId, Incarnation, NodeId, PublicKey
from daemons.protocol import messages
from daemons.protocol.access import ALLOWED, refusal
from daemons.protocol.base import Message
from daemons.protocol.block import BlockFilter, Put
from daemons.protocol.cache import ClearBlocks
from daemons.protocol.key import KEY_ROLES, AllowedKey, KeyRole
from daemons.protocol.node import Join, Leave, NodeDescription, Role


def peer(role: KeyRole) -> AllowedKey:
    return AllowedKey(public=PublicKey("00" * 32), node=NodeId("n"), role=role)


def join(node: str, role: Role) -> Join:
    described = NodeDescription(
        node=NodeId(node),
        role=role,
        host="h",
        host_id=HostId("h"),
        epoch=Epoch(1),
        control="",
        pid=1,
        software="",
    )
    return Join(node=described, incarnation_seen=Incarnation(0))


def test_every_request_is_in_the_table_and_nothing_else() -> None:
    assert set(ALLOWED) == set(typing.get_args(messages.Request)), (
        "say in daemons/protocol/access.py who may send it"
    )


def test_only_an_admin_deletes_blocks() -> None:
    clear = ClearBlocks(filter=BlockFilter())
    allowed = [role for role in KEY_ROLES if refusal(clear, peer(role)) is None]
    assert allowed == ["admin"]


def test_a_gateway_puts_no_blocks() -> None:
    assert refusal(Put(put_id=b"", blocks=[]), peer("gateway"))  # type: ignore[arg-type]


def test_a_key_joins_as_its_own_node_and_role_only() -> None:
    assert refusal(join("n", "decode"), peer("decode")) is None
    assert refusal(join("m", "decode"), peer("decode"))
    assert refusal(join("n", "prefill"), peer("decode"))
    assert refusal(join("n", "gateway"), peer("admin"))


def test_an_admin_says_goodbye_for_others_and_no_member_does() -> None:
    leave = Leave(node=NodeId("other"), epoch=Epoch(1))
    assert [role for role in KEY_ROLES if refusal(leave, peer(role)) is None] == ["admin"]


def test_a_message_that_is_not_in_the_table_is_for_nobody() -> None:
    class Fresh(Message, frozen=True):
        pass

    assert all(refusal(Fresh(), peer(role)) for role in KEY_ROLES)
