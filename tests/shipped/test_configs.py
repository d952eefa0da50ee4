"""configs/*.toml and man/*.toml.5 say exactly what the structs say."""

from pathlib import Path

import pytest
from shipped.pages import config_page

from daemons.config.base import load_config
from mcctl import config_text

ANEW = "write it anew: python tests/shipped/pages.py"


@pytest.mark.parametrize("process", sorted(config_text.PROCESSES))
class TestEachProcess:
    def test_config_shows_every_key_at_its_default(self, process: str, checkout: Path) -> None:
        shipped = (checkout / "configs" / f"{process}.toml").read_text()
        assert shipped == config_text.commented(process), ANEW
        for table in config_text.tables(config_text.PROCESSES[process]):
            assert f"[{table.name}]" in shipped
            for key in table.keys:
                line = f"{key.name} = " if key.is_required else f"# {key.name} = {key.default_text}"
                assert f"\n{line}" in shipped

    def test_every_key_has_a_meaning(self, process: str) -> None:
        for table in config_text.tables(config_text.PROCESSES[process]):
            assert table.text, table.name
            for key in table.keys:
                assert key.text, key.path

    def test_shipped_config_is_accepted(self, process: str, checkout: Path) -> None:
        load_config(checkout / "configs" / f"{process}.toml", config_text.PROCESSES[process])

    def test_config_is_accepted_with_every_comment_taken_away(
        self, process: str, checkout: Path, tmp_path: Path
    ) -> None:
        text = (checkout / "configs" / f"{process}.toml").read_text()
        lines = [
            line.removeprefix("# ") if " = " in line and "[" not in line[:3] else line
            for line in text.splitlines()
            if not _is_prose(line)
        ]
        path = tmp_path / f"{process}.toml"
        path.write_text("\n".join(lines))
        load_config(path, config_text.PROCESSES[process])

    def test_manual_page_shows_every_key(self, process: str, checkout: Path) -> None:
        shipped = (checkout / "man" / f"{process}.toml.5").read_text()
        assert shipped == config_page(process), ANEW


def _is_prose(line: str) -> bool:
    """A comment that is no key."""
    if not line.startswith("# "):
        return False
    name, equals, _ = line.removeprefix("# ").partition(" = ")
    return (
        not equals
        or not name.strip('"').replace("-", "").replace("_", "").replace(".", "").isalnum()
    )
