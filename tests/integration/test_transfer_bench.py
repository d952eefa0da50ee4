"""`mcctl bench transfer` as a user runs it, with sizes that take seconds."""

import json

import pytest

from mcctl.main import main


def test_it_prints_each_figure_beside_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["bench", "transfer", "--sizes", "4KiB,1MiB", "--batch", "2", "--output", "json"])
    result = json.loads(capsys.readouterr().out)
    assert code == 0
    assert len(result["rows"]) == 8
    assert {row["transport"] for row in result["rows"]} == {"shm", "tcp"}
    for row in result["rows"]:
        assert min(row["gb_s"], row["limit_gb_s"], row["p50_us"], row["cpu_s_per_gb"]) > 0


def test_bad_sizes_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "transfer", "--sizes", "4parsecs"]) != 0
    assert main(["bench", "transfer", "--sizes", "0"]) == 2
    assert main(["bench", "transfer", "--transport", "pigeon"]) == 2
    assert "pigeon" in capsys.readouterr().err
