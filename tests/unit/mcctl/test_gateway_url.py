"""Which gateway a verb asks, and when the master says so."""

import pytest

from daemons.core.errors import NotFound
from daemons.core.ids import Epoch, HostId, NodeId
from daemons.protocol.node import ListedNode, NodeDescription, NodeState, Role
from mcctl.gateway_url import choose_gateway, gateway_url
from mcctl.settings import Settings, ToolConfig

FAR, NEAR = "tcp://10.0.0.1:7700", "tcp://127.0.0.1:7700"


def node(
    name: str, control: str, *, role: Role = "gateway", state: NodeState = "alive"
) -> ListedNode:
    description = NodeDescription(
        node=NodeId(name),
        role=role,
        host="host-a",
        host_id=HostId("a"),
        epoch=Epoch(1),
        control=control,
        pid=1,
        software="",
    )
    return ListedNode(
        node=description,
        state=state,
        load=None,
        used_bytes=0,
        capacity_bytes=0,
        num_blocks=0,
        joined_s=1.0,
        last_beat_s=0.1,
    )


def test_first_live_gateway_by_name() -> None:
    nodes = [
        node("z", "http://10.0.0.3:8000"),
        node("a", "http://10.0.0.2:8000", state="dead"),
        node("m", "http://10.0.0.4:8000"),
        node("b", "tcp://10.0.0.9:7710", role="cachenode"),
    ]
    assert choose_gateway(nodes, FAR) == "http://10.0.0.4:8000"


@pytest.mark.parametrize(
    ("control", "url"),
    [
        ("http://0.0.0.0:8000", "http://host-a:8000"),
        ("http://10.0.0.2:8000", "http://10.0.0.2:8000"),
    ],
)
def test_one_that_listens_everywhere_is_reached_by_its_hosts_name(control: str, url: str) -> None:
    assert choose_gateway([node("g", control)], FAR) == url


def test_one_that_only_its_own_host_reaches_is_for_that_host() -> None:
    local = node("g", "http://127.0.0.1:8000")
    assert choose_gateway([local], NEAR) == "http://127.0.0.1:8000"
    with pytest.raises(NotFound, match=r"own host only \(host-a.*http\.host"):
        choose_gateway([local], FAR)


def test_none_is_said_with_the_next_step() -> None:
    with pytest.raises(NotFound, match="--url"):
        choose_gateway([node("p", "tcp://10.0.0.2:1", role="prefill")], FAR)


def test_what_is_told_comes_before_the_master() -> None:
    told = Settings(endpoint="tcp://127.0.0.1:1", _file=ToolConfig())
    assert gateway_url(told, "http://x:1") == "http://x:1"
    both = Settings(_file=ToolConfig(endpoint="tcp://127.0.0.1:1", url="http://y:2"))
    assert gateway_url(both) == "http://y:2"
    assert gateway_url(Settings(_file=ToolConfig(url="http://y:2"))) == "http://y:2"
