"""pytest is the one gate: formatter, linter, types, layers."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "format", "--check", "."], id="ruff-format"),
        pytest.param(["ruff", "check", "."], id="ruff-check"),
        pytest.param(["mypy"], id="mypy-strict"),
        pytest.param(["lint-imports"], id="import-linter"),
    ],
)
def test_tool_finds_nothing(command: list[str], checkout: Path) -> None:
    done = subprocess.run(
        [str(TOOLS / command[0]), *command[1:]],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
