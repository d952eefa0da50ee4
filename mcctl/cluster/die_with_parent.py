"""Become a program that the kernel ends with its parent: `python -m mcctl.cluster.die_with_parent PID PROGRAM ...`.

A program of its own, since a function run between fork and exec may deadlock in a process with threads.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tied_to_us(command: Sequence[str]) -> list[str]:
    """The command to start instead, for a program that is not to outlive this process, however that ends."""
    return [sys.executable, "-m", "mcctl.cluster.die_with_parent", str(os.getpid()), *command]


def main() -> None:
    parent, *command = sys.argv[1:]
    # SIGKILL: it also ends a process that is stopped or hung. The setting survives execve.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(1)  # it died before we asked
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
