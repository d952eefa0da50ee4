"""mc-deploy(7): the configs that its commands write are good, each on its machine."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from kit.deploy_page import commands

from daemons.config.base import load_config
from daemons.config.key_files import read_key_file, read_key_list
from mcctl import config_text

_SSH = r"""
ssh() {
    [ "$1" != -n ] || shift
    local folder=$FOLDER/${1#root@}
    mkdir -p "$folder"
    local command="${*:2}"
    command=${command//\/etc\/mooncake/$folder}
    (export HOME=$folder; eval "${command//\/etc\/credstore/$folder\/credstore}")
}
chown() { :; }    # there is no such user here
set -euo pipefail
"""


def test_its_configs_pass_the_check(tmp_path: Path) -> None:
    typed = commands("1. The machines", "3. Keys", "5. The configs")
    script = _SSH + textwrap.indent(typed, " " * 11)  # as it is shown
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"FOLDER": str(tmp_path), "PATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = sorted(path.name for path in tmp_path.rglob("mc-*.toml"))
    assert written == sorted(
        ["mc-master.toml", "mc-gateway@a.toml"]
        + 2 * ["mc-cachenode@a.toml", "mc-prefill@a.toml", "mc-decode@a.toml"]
    )
    _check_keys(tmp_path)


def _check_keys(hosts: Path) -> None:
    """Each daemon's config names a credential that is on its machine, and is the key of that node."""
    for file in hosts.rglob("mc-*.toml"):
        config = load_config(file, config_text.PROCESSES[config_text.process_of(file)])
        security, node = config.security, config.node  # type: ignore[attr-defined]
        key = read_key_file(file.parent / "credstore" / security.key_file)
        assert (key.node, f"mc-{key.role}") == (node.id, config_text.process_of(file))
        assert getattr(security, "master_key", key.public) == _master_key(hosts)
    listed = read_key_list(hosts / "10.0.0.1" / "authorized.toml")
    assert len(listed.allowed()) == 9


def _master_key(hosts: Path) -> str:
    return read_key_file(hosts / "10.0.0.1" / "keys" / "master.pub").public
