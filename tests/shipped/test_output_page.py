"""Every verb says what it prints as JSON, and mcctl-output(7) says the same."""

import json
from pathlib import Path

import pytest
from shipped.output_page import all_verbs, output_page

from mcctl.main import main


def test_every_verb_says_what_it_prints() -> None:
    silent = [words for words, printed in all_verbs() if printed is None]
    assert not silent, "give it the decorator `prints` of mcctl/output_schema.py"


def test_page_is_what_the_verbs_say(checkout: Path) -> None:
    text = (checkout / "man" / "mcctl-output.7").read_text()
    assert text == output_page(), "write it anew: python tests/shipped/pages.py"


def test_schema_is_shown_without_arguments_and_without_a_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cache", "show", "--output", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["title"] == "mcctl cache show"
    assert schema["required"] == ["block", "replicas"]
    assert main(["--output", "schema", "status"]) == 2
    assert "after the verb" in capsys.readouterr().err
