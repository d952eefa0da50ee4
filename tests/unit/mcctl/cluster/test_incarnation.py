"""Masters of local clusters count on where what was stored outlives the cluster."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from daemons.core.errors import ConfigError
from daemons.core.file_lock import locked
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


def test_clusters_that_start_together_begin_apart(tmp_path: Path) -> None:
    """None may count between another's look and its write."""
    num_clusters, home = 8, tmp_path / "home"
    with ThreadPoolExecutor(num_clusters) as pool:
        starts = [
            pool.submit(begin_above, home, tmp_path / str(number)) for number in range(num_clusters)
        ]
        for start in starts:
            start.result(timeout=60)
    begun = sorted(next_incarnation(tmp_path / str(number)) for number in range(num_clusters))
    assert begun == [256 * number + 1 for number in range(1, num_clusters + 1)]


def test_a_cluster_waits_for_another_that_counts(tmp_path: Path) -> None:
    """Which counts while this one waits."""
    begin_above(tmp_path, tmp_path / "first")
    with ThreadPoolExecutor(1) as pool:
        with locked(tmp_path / "incarnation"):
            start = pool.submit(begin_above, tmp_path, tmp_path / "second")
            with pytest.raises(TimeoutError):
                start.result(timeout=0.1)
            (tmp_path / "incarnation").write_text("5000\n")
        start.result(timeout=60)
    assert next_incarnation(tmp_path / "second") == 5000 + 256 + 1


def test_only_a_cluster_that_keeps_what_is_stored_needs_that(tmp_path: Path) -> None:
    assert not keeps_blocks(ClusterOptions(model=tmp_path))
    assert keeps_blocks(ClusterOptions(model=tmp_path, segment_directory=tmp_path))
    assert keeps_blocks(ClusterOptions(model=tmp_path, ssd_directory=tmp_path))
    assert keeps_blocks(ClusterOptions(model=tmp_path, object_bucket="bucket"))
