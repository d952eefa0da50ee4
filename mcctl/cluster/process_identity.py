"""Which process a pid meant: pids are reused, and after a reboot all of them mean others."""

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

_POLL_S: Final = 0.02


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A pid with its start time, in clock ticks since the boot named by `boot_id`."""

    pid: int
    start_ticks: int
    boot_id: str

    @property
    def is_alive(self) -> bool:
        """A zombie is dead: it holds nothing."""
        if self.boot_id != boot_id():
            return False
        found = _state_and_start(self.pid)
        return found is not None and found[1] == self.start_ticks and found[0] not in "ZX"

    def send(self, signum: int) -> bool:
        """False when it is gone."""
        if not self.is_alive:
            return False
        try:
            os.kill(self.pid, signum)
        except ProcessLookupError:
            return False
        return True


def identify(pid: int) -> ProcessIdentity | None:
    found = _state_and_start(pid)
    if found is None:
        return None
    return ProcessIdentity(pid=pid, start_ticks=found[1], boot_id=boot_id())


def stop_all(processes: Iterable[ProcessIdentity], *, grace_s: float) -> list[ProcessIdentity]:
    """SIGTERM to all at once, SIGKILL to those that are left after `grace_s`; returns those that had to be killed."""
    waiting = [process for process in processes if process.is_alive]
    for process in waiting:
        process.send(signal.SIGTERM)
        process.send(signal.SIGCONT)  # one that was stopped gets to see it
    left = _wait_gone(waiting, grace_s)
    for process in left:
        process.send(signal.SIGKILL)
    _wait_gone(left, 5.0)
    return left


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _wait_gone(processes: list[ProcessIdentity], timeout_s: float) -> list[ProcessIdentity]:
    deadline_s = time.monotonic() + timeout_s
    while processes and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        processes = [process for process in processes if process.is_alive]
    return processes


def _state_and_start(pid: int) -> tuple[str, int] | None:
    """Fields 3 and 22 of /proc/PID/stat; the name before them may hold spaces and parentheses."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])
