"""A daemon of a local cluster as a process: its command, what it inherits, its files, and its last words."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from mcctl.cluster.die_with_parent import tied_to_us
from mcctl.cluster.record import Role

_ENVIRONMENT: Final = {
    # One thread per daemon; one that waits must not burn a core that another one needs.
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "PYTHONUNBUFFERED": "1",
}
MASTER_ENVIRONMENT: Final = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""As its unit has it."""
EXIT_CONFIG: Final = 78
_NOT_INHERITED: Final = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "STATE_DIRECTORY",
    "RUNTIME_DIRECTORY",
    "JOURNAL_STREAM",
)


def config_path(directory: Path, name: str) -> Path:
    return directory / f"{name}.toml"


def log_path(directory: Path, name: str) -> Path:
    return directory / f"{name}.log"


def spawn(
    directory: Path, name: str, role: Role, *, is_temporary: bool
) -> "subprocess.Popen[bytes]":
    """By the config in the cluster's directory; the log there goes on. A temporary one ends with this process."""
    command = [sys.executable, "-m", f"daemons.mc_{role}", "--config"]
    command.append(str(config_path(directory, name)))
    if is_temporary:
        command = tied_to_us(command)
    environment = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    if role == "master":
        environment |= MASTER_ENVIRONMENT
    with log_path(directory, name).open("ab") as log:
        # A session of its own: Ctrl-C reaches us alone, and we end them in order.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=environment | _ENVIRONMENT,
            start_new_session=True,
        )


def last_words(log: Path) -> str:
    """The last line, without the traceback above it."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "(nothing)"
