"""Ctrl-C at any moment of a command's life is exit code 130 and no traceback."""

import subprocess
import sys

import pytest

INTERRUPTED_AT_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["mcctl", "config", "show", "mc-master"]
from mcctl.__main__ import run
run()
"""

INTERRUPTED_AT_EXIT = """
import atexit, os, signal, sys
atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.argv = ["mcctl", "config", "show", "mc-master"]
from mcctl.__main__ import run
run()
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30
    )


@pytest.mark.parametrize(
    "module", ["mcctl.main", "typer", "msgspec", "mcctl.render", "mcctl.commands.config"]
)
def test_interrupt_while_it_is_imported_is_silent(module: str) -> None:
    done = run(INTERRUPTED_AT_IMPORT.format(module=module))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_interrupt_while_it_ends_is_silent() -> None:
    done = run(INTERRUPTED_AT_EXIT)
    assert (done.returncode, done.stderr) == (130, "")


def test_ignored_interrupt_stays_ignored() -> None:
    script = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    done = run(script + INTERRUPTED_AT_IMPORT.format(module="mcctl.render"))
    assert done.returncode == 0
    assert "listen" in done.stdout
