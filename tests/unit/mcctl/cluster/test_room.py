"""Segments that a local cluster cannot use are refused before anything starts."""

import json
import os
from pathlib import Path

import pytest

from daemons.core.errors import ConfigError, Exhausted, McError
from mcctl.cluster import room
from mcctl.cluster.plan import ClusterOptions
from mcctl.cluster.room import check_segments
from mcctl.main import main

NOBODY = 65534


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A block of 64 tokens takes 8 MiB."""
    directory = tmp_path / "model"
    directory.mkdir()
    shape = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
    shape["num_key_value_heads"] = 8
    (directory / "config.json").write_text(json.dumps(shape))
    (directory / "tokenizer.json").write_text("{}")
    return directory


def refusal(options: ClusterOptions) -> McError:
    with pytest.raises(McError) as caught:
        check_segments(options)
    return caught.value


@pytest.mark.parametrize("segment", ["1MiB", "9MiB", "128MiB"])
def test_segment_that_holds_no_block_of_the_model_is_refused(model: Path, segment: str) -> None:
    """Of 128 MiB each slab takes a sixteenth, less than a block and its trailer."""
    error = refusal(ClusterOptions(model=model, dtype="bfloat16", segment=segment))
    assert isinstance(error, ConfigError)
    assert "one takes 8.0 MiB; give at least 129MiB" in error.message


def test_segment_that_holds_one_is_fine(model: Path) -> None:
    check_segments(ClusterOptions(model=model, dtype="bfloat16", segment="129MiB"))
    check_segments(ClusterOptions(model=Path("/none"), segment="1MiB"))


def test_auto_counts_what_this_host_computes_in(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ClusterOptions(model=model, segment="129MiB")
    monkeypatch.setattr(room, "host_dtype", lambda: "bfloat16")
    check_segments(options)
    monkeypatch.setattr(room, "host_dtype", lambda: "float32")
    assert "one takes 16.0 MiB; give at least 257MiB" in refusal(options).message


def test_the_command_says_so_in_one_line_and_starts_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["cluster", "up", "--model", str(model), "--segment", "1MiB"]) == 78
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mcctl:")]
    assert "--segment 1MiB holds no block of model" in line
    assert not list(tmp_path.rglob("*.log"))


def test_segments_larger_than_the_tmpfs_are_refused(tmp_path: Path) -> None:
    none = Path("/none")
    error = refusal(ClusterOptions(model=none, segment="1000TiB"))
    assert isinstance(error, Exhausted)
    kept = ClusterOptions(model=none, segment="1000TiB", segment_directory=tmp_path)
    assert "--segment" in refusal(kept).message


def test_room_that_an_earlier_cluster_took_counts_as_free(tmp_path: Path) -> None:
    mine = tmp_path / f"mooncake-{os.getuid()}"
    mine.mkdir()
    with (mine / "cachenode.segment").open("wb") as sparse:
        sparse.truncate(1 << 42)
    options = ClusterOptions(model=Path("/none"), segment="4TiB", segment_directory=tmp_path)
    check_segments(options)


def test_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for directory in (file, file / "below"):
        options = ClusterOptions(model=Path("/none"), segment_directory=directory)
        assert "is no directory" in refusal(options).message


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / f"mooncake-{os.getuid()}"
    mine.mkdir()
    os.chown(mine, NOBODY, NOBODY)
    options = ClusterOptions(model=Path("/none"), segment_directory=tmp_path)
    assert "somebody else" in refusal(options).message
