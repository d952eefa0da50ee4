"""Which nodes drain outlives the master; a file that is none is refused, not taken for an empty one."""

from pathlib import Path

import pytest

from daemons.core.errors import ConfigError
from daemons.core.ids import NodeId
from daemons.mc_master.nodes.drain_list import DrainList


def test_it_is_kept_on_disk(tmp_path: Path) -> None:
    drains = DrainList(tmp_path)
    assert drains.nodes == frozenset()
    drains.add(NodeId("b"))
    drains.add(NodeId("a"))
    drains.add(NodeId("a"))
    assert DrainList(tmp_path).nodes == {"a", "b"}
    drains.remove(NodeId("b"))
    drains.remove(NodeId("c"))
    assert DrainList(tmp_path).nodes == {"a"}


@pytest.mark.parametrize("text", ["", "{}", "[1]", "no json", "[" * 200_000, "\0" * 4096])
def test_a_file_that_is_no_list_of_nodes_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "draining.json").write_text(text)
    with pytest.raises(ConfigError, match=r"draining\.json: not the list of draining nodes"):
        DrainList(tmp_path)
