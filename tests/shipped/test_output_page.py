"""--output schema: what a verb prints as JSON, said by itself. test_man.py holds mcctl-output(7) against it."""

import json

import pytest

from mcctl.main import main


def test_schema_is_shown_without_arguments_and_without_a_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cache", "show", "--output", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["title"] == "mcctl cache show"
    assert schema["required"] == ["block", "replicas"]
    assert main(["--output", "schema", "status"]) == 2
    assert "after the verb" in capsys.readouterr().err
