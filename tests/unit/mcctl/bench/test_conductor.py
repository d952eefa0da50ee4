"""mcctl bench conductor, as typed."""

import json

import pytest

from mcctl.main import main


def test_decisions_are_timed_beside_the_bare_match(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--instances", "2", "--instances", "40", "--blocks", "20", "--decisions", "50"]
    status = main(["bench", "conductor", *asked, "--policy", "dynamo", "--output", "json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert status == 0
    assert [(row["num_instances"], row["policy"]) for row in rows] == [
        (2, "dynamo"),
        (40, "dynamo"),
    ]
    for row in rows:
        assert 0 < row["match_p50_s"] < row["p50_s"] <= row["p99_s"]
        assert row["ratio"] == pytest.approx(row["p50_s"] / row["match_p50_s"])


def test_a_policy_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "conductor", "--policy", "best"]) == 2
    assert "kvcache-centric" in capsys.readouterr().err
