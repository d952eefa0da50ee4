"""A process that computes, installed without the [engine] extra."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_missing_torch_is_one_line_and_78(name: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')\n")
    done = subprocess.run(
        [sys.executable, "-m", f"daemons.mc_{name}", "--set", f"model.path={tmp_path}"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 78
    assert done.stderr == (
        f"mc-{name}: torch is not installed; pip install 'mooncake-mc[engine]' into this environment\n"
    )
