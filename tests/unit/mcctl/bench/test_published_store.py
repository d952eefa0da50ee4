"""A comparison with the published store begins with finding it."""

import sys
from pathlib import Path

import pytest

from mcctl.bench.published_store import published_master
from mcctl.main import main


def test_a_python_without_it_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    assert main(["bench", "store", "--writers", "0", "--beside", str(python)]) == 78
    assert "pip install mooncake-transfer-engine-non-cuda" in capsys.readouterr().err


def test_its_master_lies_beside_the_python(tmp_path: Path) -> None:
    (tmp_path / "mooncake_master").touch()
    assert published_master(tmp_path / "python") == tmp_path / "mooncake_master"
