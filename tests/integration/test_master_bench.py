"""`mcctl bench master` as a user runs it, with few blocks."""

import json

import pytest

from mcctl.bench import master as master_bench
from mcctl.main import main


def test_each_rate_of_the_master_stands_beside_a_limit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_bench, "DEATH_S", 5.0)
    asked = ["bench", "master", "--blocks", "10000", "--rounds", "2", "--output", "json"]
    assert main(asked) == 0
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    for row in rows.values():
        assert row["value"] > 0
        assert row["unit"] != "blocks/s" or min(row["wall"], row["limit"]) > 0
    assert {"match, 32 a call", "put and evict, 256 a report"} <= rows.keys()
    assert any(what.startswith("look-up while a node dies, p99") for what in rows)


def test_too_few_blocks_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "master", "--blocks", "10"]) == 2
    assert "10000" in capsys.readouterr().err
