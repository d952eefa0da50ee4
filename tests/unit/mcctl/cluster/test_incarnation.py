"""Masters of local clusters count on where what was stored outlives the cluster."""

from pathlib import Path

import pytest

from daemons.core.errors import ConfigError
from daemons.mc_master.nodes.incarnation import next_incarnation
from mcctl.cluster.incarnation import begin_above, keeps_blocks
from mcctl.cluster.plan import ClusterOptions


def test_each_cluster_begins_above_all_masters_of_those_before(tmp_path: Path) -> None:
    home, seen = tmp_path / "home", [0]
    for number in range(3):
        state = tmp_path / f"state-{number}"
        begin_above(home, state)
        seen += [next_incarnation(state) for _ in range(100)]
    assert seen == sorted(set(seen))
    (home / "incarnation").write_text("nonsense")
    begin_above(home, tmp_path / "more")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="it has to be written to"):
        begin_above(tmp_path / "file" / "home", tmp_path / "more")


def test_only_a_cluster_that_keeps_what_is_stored_needs_that(tmp_path: Path) -> None:
    assert not keeps_blocks(ClusterOptions(model=tmp_path))
    assert keeps_blocks(ClusterOptions(model=tmp_path, segment_directory=tmp_path))
    assert keeps_blocks(ClusterOptions(model=tmp_path, ssd_directory=tmp_path))
    assert keeps_blocks(ClusterOptions(model=tmp_path, object_bucket="bucket"))
