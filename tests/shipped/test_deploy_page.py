"""mc-deploy(7): the configs that its commands write are good, each on its machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

_SSH = r"""
ssh() {
    local folder=$FOLDER/${1#root@}
    mkdir -p "$folder"
    eval "${2//\/etc\/mooncake/$folder}"
}
set -euo pipefail
"""


def commands(page: str, section: str) -> str:
    """What its .Bd blocks hold, as a reader copies it."""
    text = page.split(f".Ss {section}\n")[1].split("\n.S")[0]
    blocks = re.findall(r"^\.Bd .*?\n(.*?)^\.Ed$", text, re.MULTILINE | re.DOTALL)
    return "".join(blocks).replace("\\e", "\\")


def test_its_configs_pass_the_check(checkout: Path, tmp_path: Path) -> None:
    page = (checkout / "man" / "mc-deploy.7").read_text()
    script = _SSH + commands(page, "1. The machines") + commands(page, "5. The configs")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"FOLDER": str(tmp_path), "PATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = sorted(path.name for path in tmp_path.rglob("*.toml"))
    assert written == sorted(
        ["mc-master.toml", "mc-gateway@a.toml"]
        + 2 * ["mc-cachenode@a.toml", "mc-prefill@a.toml", "mc-decode@a.toml"]
    )
