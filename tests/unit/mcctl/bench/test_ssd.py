"""mcctl bench ssd, as typed."""

import json
from pathlib import Path

import pytest

from mcctl.main import main


def test_reads_and_the_start_are_measured_and_nothing_is_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ["--sizes", "64KiB,1MiB", "--total", "8MiB", "--blocks", "1000", "--threads", "2"]
    status = main(["bench", "ssd", str(tmp_path), *asked, "--output", "json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert status == 0
    assert [(row["what"], row["size_bytes"]) for row in rows] == [
        ("read", 65536),
        ("read", 1048576),
        ("open", 4096),
    ]
    for row in rows:
        assert row["value"] > 0
        assert row["ratio"] == pytest.approx(row["value"] / row["limit"])
    assert not list(tmp_path.iterdir())


def test_a_size_that_is_too_small_or_a_directory_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "ssd", str(tmp_path), "--sizes", "1KiB"]) == 2
    assert "4 KiB" in capsys.readouterr().err
    assert main(["bench", "ssd", str(tmp_path / "none")]) == 2


def test_a_disk_without_room_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "ssd", str(tmp_path), "--total", "1000000GiB"]) == 6
    assert "smaller --total" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
