"""What `mcctl node list` says of a node in the column that no terminal is too narrow for."""

import msgspec
import pytest
from unit.mcctl.test_health import node

from daemons.protocol.node import NodeState
from mcctl.commands.node import state_text


@pytest.mark.parametrize(
    ("state", "is_draining", "text"),
    [
        ("alive", False, "alive"),
        ("alive", True, "draining"),
        ("dead", True, "dead, draining"),
        ("suspect", False, "suspect"),
    ],
)
def test_drain_is_part_of_the_state(state: NodeState, is_draining: bool, text: str) -> None:
    listed = msgspec.structs.replace(node("c", "cachenode", state=state), is_draining=is_draining)
    assert state_text(listed) == text
