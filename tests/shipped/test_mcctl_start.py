"""mcctl starts fast because it imports late. What is imported is tested, not how long it takes."""

import subprocess
import sys

HEAVY = ("torch", "zmq", "httpx", "numpy", "transformers", "tokenizers")


def _imported_by(code: str) -> set[str]:
    script = f"{code}\nimport sys\nsys.stderr.write('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stderr.split()}


def test_help_imports_nothing_heavy() -> None:
    found = _imported_by("from mcctl.main import main\nassert main(['--help']) == 0")
    assert not found & set(HEAVY)


def test_asking_the_cluster_needs_no_torch_and_no_http() -> None:
    code = "from mcctl.main import main\nmain(['status', '--endpoint', 'tcp://127.0.0.1:1', '--timeout', '0.1'])"
    assert not _imported_by(code) & {"torch", "httpx", "transformers", "tokenizers"}


def test_no_command_needs_torch() -> None:
    code = (
        "import importlib\nfrom mcctl.command_line.nouns import COMMANDS\n"
        "for lazy in COMMANDS.values(): importlib.import_module('mcctl.commands.' + lazy.module)"
    )
    assert not _imported_by(code) & {"torch", "transformers"}
