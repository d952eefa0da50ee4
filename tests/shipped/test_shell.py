"""Shell scripts that are shipped or run tests: nothing that shellcheck knows to be wrong."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [*ROOT.glob("systemd/*.sh"), *ROOT.glob("tests/systemd/*.sh")]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_passes_shellcheck(script: Path) -> None:
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
