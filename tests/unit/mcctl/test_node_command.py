"""What `mcctl node list` and `mcctl top` say of a node in the column that no terminal is too narrow for."""

import pytest

from mcctl.views.node_state import state_text


@pytest.mark.parametrize(
    ("state", "is_draining", "text"),
    [
        ("alive", False, "alive"),
        ("alive", True, "draining"),
        ("dead", True, "dead, draining"),
        ("suspect", False, "suspect"),
    ],
)
def test_drain_is_part_of_the_state(state: str, is_draining: bool, text: str) -> None:
    assert state_text(state, is_draining=is_draining) == text
