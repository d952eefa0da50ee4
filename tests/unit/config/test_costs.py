"""The file of conductor.costs_file: first match counts, and what is wrong is said."""

from pathlib import Path

import pytest

from daemons.config.costs import InstanceCosts, read_costs
from daemons.core.errors import ConfigError
from mcctl.commands.node import costs_text


def test_the_first_entry_that_matches_counts(tmp_path: Path) -> None:
    entries = [
        InstanceCosts(node="prefill-0", prefill_token_s=1e-3),
        InstanceCosts(node="prefill-*", model="llama*", prefill_token_s=2e-3),
        InstanceCosts(decode_fixed_s=0.02, decode_sequence_s=1e-4),
    ]
    path = tmp_path / "costs.toml"
    path.write_text("\n".join(map(costs_text, entries)))
    costs = read_costs(str(path))
    assert costs.instance == entries
    for node, model, token_s in (
        ("prefill-0", "x", 1e-3),
        ("prefill-1", "llama-70b", 2e-3),
        ("prefill-1", "qwen", 0.0),
    ):
        load = costs.find(node, model)
        assert load is not None
        assert load.prefill_token_s == token_s
    assert read_costs("").find("prefill-0", "x") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[instance]]\nprefil_token_s = 1", "prefil_token_s"),
        ("[[instance]]\nload_token_s = -1", "load_token_s"),
        ("[[instance]", "costs.toml"),
        ("instance = 3", "instance"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "costs.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_costs(str(path))


def test_a_file_that_is_not_there_is_said() -> None:
    with pytest.raises(ConfigError, match="mcctl node costs"):
        read_costs("/nowhere/costs.toml")
